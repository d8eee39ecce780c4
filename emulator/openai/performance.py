"""What the engine did in the last minute, for `/system/status` (R42)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from engine.hooks import EngineEvent, RequestEnded

_WINDOW_S = 60.0
# More requests than that in a minute are counted from the newest.
_MOST = 20_000


class Performance:
    """Remembers how the requests of the last minute went; an engine's hook, owned by its loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # When it ended, how long it took in seconds, how many tokens it said.
        self._ended: deque[tuple[float, float, int]] = deque(maxlen=_MOST)
        self._started = now()

    @property
    def uptime_s(self) -> float:
        """How long this has been kept."""
        return self._now() - self._started

    def __call__(self, event: EngineEvent) -> None:
        """Take an event; only ends that brought an answer count."""
        if isinstance(event, RequestEnded) and event.finish is not None:
            tokens = event.finish.usage.completion_tokens
            self._ended.append((self._now(), event.duration_s, tokens))

    def describe(self) -> dict[str, float]:
        """Return the minute in S1's words."""
        since = self._now() - _WINDOW_S
        while self._ended and self._ended[0][0] < since:
            self._ended.popleft()
        count = len(self._ended)
        # A server that is younger than a minute has had less time.
        minutes = min(_WINDOW_S, max(self.uptime_s, 1.0)) / 60
        latency_s = sum(elapsed_s for _, elapsed_s, _ in self._ended) / count if count else 0.0
        tokens = sum(said for _, _, said in self._ended)
        return {
            "avg_latency_ms": round(latency_s * 1000, 3),
            "requests_per_minute": round(count / minutes, 2),
            "throughput_tokens_per_second": round(tokens / (minutes * 60), 2),
        }
