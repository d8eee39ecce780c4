"""Name workers whose calls are refused, without filling the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

_INTERVAL_S = 60.0
_MAX_CALLERS = 1_000


class RefusalLog:
    """Logs a warning for each caller at most once a minute; owned by the event loop.

    An SDK worker repeats a refused call for as long as it lives, and logs nothing about it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._warned_at: dict[str, float] = {}

    def record(self, caller: str, reason: str) -> None:
        """Log that the call of a worker was refused, unless that was logged a moment ago."""
        now = self._clock()
        if now - self._warned_at.get(caller, float("-inf")) < _INTERVAL_S:
            return
        # Put back at the end: the oldest warnings are dropped first.
        self._warned_at.pop(caller, None)
        while len(self._warned_at) >= _MAX_CALLERS:
            del self._warned_at[next(iter(self._warned_at))]
        self._warned_at[caller] = now
        logger.warning("a call of the worker %s was refused: %s", caller, reason)
