"""Serve `/system/status`: the state of the models and the statistics of the last minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from emulator.http.responses import JSON
from emulator.metrics.instruments import Metric
from emulator.metrics.snapshot import metrics_as_json
from engine import Engine, EngineState
from engine.hooks import EngineEvent, RequestEnded

_WINDOW_S = 60.0
# If there are more requests within the window, only the newest are counted.
_MAX_REQUESTS = 20_000
# In order of precedence: the status is the first of these that any model has.
_STATUS_WORDS = {
    EngineState.READY: "operational",
    EngineState.UNLOADED: "operational",
    EngineState.LOADING: "loading",
    EngineState.RESTARTING: "restarting",
}
_DEAD = "unavailable"


class RequestStatistics:
    """Counts the requests of the last minute. Subscribe it to an engine; not thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # Time of the end, duration in seconds, number of completion tokens.
        self._requests: deque[tuple[float, float, int]] = deque(maxlen=_MAX_REQUESTS)
        self._started = now()

    @property
    def uptime_s(self) -> float:
        """Seconds since this object was created."""
        return self._now() - self._started

    def __call__(self, event: EngineEvent) -> None:
        """Record an engine event. Only requests that ended with an answer are counted."""
        if isinstance(event, RequestEnded) and event.finish is not None:
            tokens = event.finish.usage.completion_tokens
            self._requests.append((self._now(), event.duration_s, tokens))

    def describe(self) -> dict[str, float]:
        """Return the statistics by the names that clients of the `oracle` dialect read."""
        window_start = self._now() - _WINDOW_S
        while self._requests and self._requests[0][0] < window_start:
            self._requests.popleft()
        count = len(self._requests)
        # The window of a server that started less than a minute ago is shorter.
        minutes = min(_WINDOW_S, max(self.uptime_s, 1.0)) / 60
        latency_s = sum(duration_s for _, duration_s, _ in self._requests) / count if count else 0.0
        tokens = sum(tokens for _, _, tokens in self._requests)
        return {
            "avg_latency_ms": round(latency_s * 1000, 3),
            "requests_per_minute": round(count / minutes, 2),
            "throughput_tokens_per_second": round(tokens / (minutes * 60), 2),
        }


class SystemStatus:
    """Reports the state of all engines, with the statistics and the metrics of the server."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        statistics: RequestStatistics,
        metrics: Sequence[Metric],
    ) -> None:
        self._engines = engines
        self._statistics = statistics
        self._metrics = metrics

    async def respond(self, request: Request) -> Response:
        """Return the status as JSON."""
        states = {name: engine.state for name, engine in self._engines.items()}
        words = (word for state, word in _STATUS_WORDS.items() if state in states.values())
        return JSON(
            {
                "status": next(words, _DEAD),
                "models": [{"id": name, "status": state.value} for name, state in states.items()],
                "uptime": round(self._statistics.uptime_s, 3),
                "performance": self._statistics.describe(),
                "metrics": metrics_as_json(self._metrics),
            }
        )
