"""When a model that could not be loaded on demand is tried again."""

from __future__ import annotations

import time

from engine.errors import EngineClosed, EngineError

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0


class LoadRetry:
    """Counts the failures of one model in a row; the pause after each is twice the one before.

    Each load may unload other models, so a model that fails is not tried for every request.
    Owned by the event loop.
    """

    def __init__(self) -> None:
        self._failure: EngineError | None = None
        self._failures = 0
        self._retry_at = 0.0

    def record_failure(self, failure: EngineError) -> None:
        """Begin a pause; has no effect for a failure that was recorded before."""
        if failure is self._failure:
            return
        self._failure = failure
        self._retry_at = time.monotonic() + self.next_pause_s
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
        return not isinstance(failure, EngineClosed) and time.monotonic() >= self._retry_at
