"""What the engine's processes have printed last."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import IO

logger = logging.getLogger(__name__)

_LINES = 20
_LONGEST = 300
# What begins a listing of where the code was; it is longer than what is kept.
_TRACES = ("Fatal Python error: ", "stack backtrace:", "Stack backtrace:")


class OutputTail:
    """The last lines of the current process; each process is listened to on a thread."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._reader: threading.Thread | None = None

    def listen(self, pipe: IO[bytes]) -> None:
        """Collect what comes out of a new process's pipe until it is closed, and close it here."""
        self._lines.clear()
        self._reader = threading.Thread(
            target=self._collect, args=(pipe,), name="engine-output", daemon=True
        )
        self._reader.start()

    @property
    def is_complete(self) -> bool:
        """Whether the process's pipe has been read to its end."""
        return self._reader is None or not self._reader.is_alive()

    def lines(self) -> list[str]:
        """Return them, the oldest first."""
        return [*self._lines]

    def all(self) -> str:
        """Return them in one line, for a log."""
        return " | ".join(self._lines) or "none"

    def last(self) -> str:
        """Return the last one, for an error."""
        return self._lines[-1][:_LONGEST] if self._lines else "none"

    def _collect(self, pipe: IO[bytes]) -> None:
        with pipe:
            traced = False
            for line in pipe:
                text = line.decode("utf-8", "replace").rstrip()
                # What follows is where Python was: it would push out what the library had to say.
                traced = traced or text.startswith(_TRACES)
                if text and not (traced and self._lines):
                    self._lines.append(text)
                if text:
                    logger.debug("engine host: %s", text)
