"""When a model that could not be loaded on demand is tried again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from engine.errors import EngineClosed, EngineError

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0


class LoadRetry:
    """Counts the failures of one model in a row; the pause after each is twice the one before.

    Each load may unload other models, so a model that fails is not tried for every request.
    `clock` returns the time in seconds. Owned by the event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failure: EngineError | None = None
        self._failures = 0
        self._retry_at = 0.0

    def record_failure(self, failure: EngineError) -> None:
        """Begin a pause; has no effect for a failure that was recorded before."""
        if failure is self._failure:
            return
        self._failure = failure
        self._retry_at = self._clock() + self.next_pause_s
        self._failures += 1

    def record_load(self) -> None:
        """Forget the failures: the model is loaded."""
        self._failure, self._failures = None, 0

    @property
    def next_pause_s(self) -> float:
        """How long the pause after the next failure is."""
        return min(FIRST_PAUSE_S * 2.0 ** min(self._failures, 30), MAX_PAUSE_S)

    def is_due(self, failure: EngineError) -> bool:
        """Return whether the model may be tried again; a closed engine may not."""
        return not isinstance(failure, EngineClosed) and self._clock() >= self._retry_at

    def add_time(self, failure: EngineError) -> EngineError:
        """Return the recorded failure with the time of the next try; any other one as it is."""
        if failure is not self._failure or isinstance(failure, EngineClosed):
            return failure
        pause_s = max(math.ceil(self._retry_at - self._clock()), 0)
        return type(failure)(
            f"{failure.message}; a request in {pause_s} s or later tries it again",
            **failure.details,
        )
