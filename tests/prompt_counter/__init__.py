"""Count the prompts that engines in other processes receive; `sitecustomize` runs in them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

_FOLDER = Path(__file__).parent
_ROOT = _FOLDER.parent.parent


class PromptCounter:
    """Counts how often each prompt was generated; engine processes report through a pipe."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # Also open for writing: otherwise reading ends whenever no engine has the pipe open.
        self._pipe = os.open(path, os.O_RDWR)
        self._rest = b""
        self.counts: Counter[str] = Counter()

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that make a process's engines report."""
        path = os.pathsep.join((str(_FOLDER), str(_ROOT)))
        return {"PROMPT_COUNTER": str(self.path), "PYTHONPATH": path}

    def wait_for(self, more: int) -> None:
        """Block until this many more prompts were started."""
        expected_total = self.counts.total() + more
        while self.counts.total() < expected_total:
            self._count(os.read(self._pipe, 65536))

    def drain(self) -> None:
        """Count the reports that have arrived, without waiting."""
        os.set_blocking(self._pipe, False)
        try:
            while True:
                self._count(os.read(self._pipe, 65536))
        except BlockingIOError:
            os.set_blocking(self._pipe, True)

    def close(self) -> None:
        os.close(self._pipe)

    def _count(self, raw: bytes) -> None:
        *lines, self._rest = (self._rest + raw).split(b"\n")
        self.counts.update(line.decode() for line in lines)
