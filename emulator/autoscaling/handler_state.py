"""The state of the user's handler, for `/health` and the console."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.autoscaling.autoscaler import Autoscaler
from emulator.autoscaling.program.worker_program import WorkerProgram


@dataclass(frozen=True, slots=True)
class HandlerState:
    """Reads the state of the workers that run the user's handler.

    `program` is its file, or its image. `folders` have its tests.
    """

    program: WorkerProgram
    autoscaler: Autoscaler

    @property
    def folders(self) -> Sequence[Path]:
        """The folders with the handler's tests, the nearest first."""
        return self.program.folders

    def to_wire(self) -> dict[str, Any]:
        """Return the endpoint, what runs and its state, and why the newest code did not start.

        A handler has a file and a Python; of an image, `python` is the engine that runs it.
        """
        failure = self.autoscaler.failure
        image = self.program.image
        return {
            "endpoint": self.autoscaler.endpoint,
            "file": None if self.program.file is None else str(self.program.file),
            "image": None if image is None else image.reference,
            "python": self.autoscaler.python,
            "state": self.autoscaler.handler_state,
            "failure": None if failure is None else failure.to_wire(),
        }
