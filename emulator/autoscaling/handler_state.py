"""The state of the user's handler, for `/health` and the console."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emulator.autoscaling.autoscaler import Autoscaler
from emulator.autoscaling.worker_program import WorkerProgram


@dataclass(frozen=True, slots=True)
class HandlerState:
    """Reads the state of the workers that run the user's handler."""

    program: WorkerProgram
    autoscaler: Autoscaler

    def to_wire(self) -> dict[str, Any]:
        """Return the file, the Python, the state, and why the newest code did not start."""
        failure = self.autoscaler.failure
        return {
            "file": str(self.program.file),
            "python": self.program.command[0],
            "state": self.autoscaler.handler_state,
            "failure": None if failure is None else failure.to_wire(),
        }
