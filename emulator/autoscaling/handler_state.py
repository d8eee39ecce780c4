"""The state of the user's handler, for `/health` and the console."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.autoscaling.autoscaler import Autoscaler


@dataclass(frozen=True, slots=True)
class HandlerState:
    """Reads the state of the workers that run the user's handler."""

    file: Path
    autoscaler: Autoscaler

    def to_wire(self) -> dict[str, Any]:
        """Return the endpoint, file, Python and state, and why the newest code did not start."""
        failure = self.autoscaler.failure
        return {
            "endpoint": self.autoscaler.endpoint,
            "file": str(self.file),
            "python": self.autoscaler.python,
            "state": self.autoscaler.handler_state,
            "failure": None if failure is None else failure.to_wire(),
        }
