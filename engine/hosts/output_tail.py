"""The last lines that an engine process has printed."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import IO

logger = logging.getLogger(__name__)

_MAX_LINES = 20
_MAX_LAST_LINE_CHARS = 300
# The first lines of stack traces, which are longer than the lines that are kept.
_TRACE_STARTS = ("Fatal Python error: ", "stack backtrace:", "Stack backtrace:")


class OutputTail:
    """Keeps the last lines of the current process; a thread reads them."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._reader: threading.Thread | None = None

    def listen(self, pipe: IO[bytes]) -> None:
        """Collect the output of a new process until its pipe is closed, and close this end then.

        Raises RuntimeError if no thread can be started.
        """
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
        """Return the lines, the oldest first."""
        return [*self._lines]

    def joined(self) -> str:
        """Return all lines as one, for a log."""
        return " | ".join(self._lines) or "none"

    def last_line(self) -> str:
        """Return the last line, shortened, for an error message."""
        return self._lines[-1][:_MAX_LAST_LINE_CHARS] if self._lines else "none"

    def _collect(self, pipe: IO[bytes]) -> None:
        with pipe:
            in_trace = False
            for line in pipe:
                text = line.decode("utf-8", "replace").rstrip()
                # A stack trace would push out the lines that the library printed before it.
                in_trace = in_trace or text.startswith(_TRACE_STARTS)
                if text and not (in_trace and self._lines):
                    self._lines.append(text)
                if text:
                    logger.debug("engine host: %s", text)
