"""Who counts what engines of other processes were asked; `sitecustomize` is their side of it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

_FOLDER = Path(__file__).parent
_ROOT = _FOLDER.parent.parent


class Witness:
    """Counts how often each prompt was generated, as the engine processes tell it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # For writing too, or it would end whenever nobody has it open.
        self._pipe = os.open(path, os.O_RDWR)
        self._rest = b""
        self.seen: Counter[str] = Counter()

    @property
    def variables(self) -> dict[str, str]:
        """What a process needs in its environment for its engines to tell."""
        path = os.pathsep.join((str(_FOLDER), str(_ROOT)))
        return {"WITNESS": str(self.path), "PYTHONPATH": path}

    def wait_for(self, more: int) -> None:
        """Return when so many more prompts have been begun."""
        wanted = self.seen.total() + more
        while self.seen.total() < wanted:
            self._take(os.read(self._pipe, 65536))

    def drain(self) -> None:
        """Take what is there without waiting for more."""
        os.set_blocking(self._pipe, False)
        try:
            while True:
                self._take(os.read(self._pipe, 65536))
        except BlockingIOError:
            os.set_blocking(self._pipe, True)

    def close(self) -> None:
        os.close(self._pipe)

    def _take(self, raw: bytes) -> None:
        *whole, self._rest = (self._rest + raw).split(b"\n")
        self.seen.update(line.decode() for line in whole)
