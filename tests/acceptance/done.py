"""A run of `python -m handler` that is over."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass
class Done:
    """One ended process."""

    code: int
    stdout: str
    stderr: str

    @property
    def result(self) -> Any:
        """The last line of stdout, which is JSON."""
        return json.loads(self.stdout.splitlines()[-1])

    def error(self) -> str:
        """The one error that a failed run tells, and nothing else."""
        assert self.code == 1
        assert "Traceback" not in self.stdout + self.stderr
        error = self.result["error"]
        assert type(error) is str
        assert "\n" not in error
        return error
