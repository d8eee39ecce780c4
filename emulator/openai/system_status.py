"""What the oracle's bare routes have beside their dialect: a rate limit and a status (R41, R42)."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from emulator.http.responses import JSON, error_response
from emulator.metrics.instruments import Metric
from emulator.metrics.snapshot import metrics_as_json
from emulator.openai.performance import Performance
from engine import Engine, EngineState
from handler.errors import ErrorInfo, ErrorMapping

_TOO_MANY = ErrorMapping(429, "rate_limit_error", retryable=True, name="rate_limit_exceeded")
# The first that a model is in: one that answers is an operational system.
_WORDS = {
    EngineState.READY: "operational",
    EngineState.LOADING: "loading",
    EngineState.RESTARTING: "restarting",
}
_DEAD = "unavailable"

_Answer = Callable[[Request], Coroutine[Any, Any, Any]]


class Oracle:
    """Counts chat calls of each key, or of each address where there are no keys.

    `rate` is RATE_LIMIT_CHAT, in the words of the library `limits` ("10/minute"); "off",
    or nothing, is no limit. Owned by the event loop.

    Raises:
        ValueError: the rate cannot be read.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        performance: Performance,
        metrics: Sequence[Metric],
        rate: str,
    ) -> None:
        self._engines = engines
        self._performance = performance
        self._metrics = metrics
        self._item: Any = None
        if rate and rate.strip().lower() != "off":
            # Its package takes 0.1 s to import.
            from limits import parse
            from limits.storage import MemoryStorage
            from limits.strategies import MovingWindowRateLimiter

            self._item = parse(rate)
            self._window = MovingWindowRateLimiter(MemoryStorage())

    def limited(self, answer: _Answer) -> _Answer:
        """Return a route that answers 429 when its caller comes too often, before anything else."""
        if self._item is None:
            return answer

        async def counted(request: Request) -> Any:
            caller = _caller(request)
            taken = self._window.hit(self._item, caller)
            stats = self._window.get_window_stats(self._item, caller)
            wait_s = max(1, math.ceil(stats.reset_time - time.time()))
            headers = {
                "X-RateLimit-Limit": str(self._item.amount),
                "X-RateLimit-Remaining": str(max(0, stats.remaining)),
                "X-RateLimit-Reset": str(math.ceil(stats.reset_time)),
            }
            if taken:
                response = await answer(request)
            else:
                said = f"Rate limit exceeded. Try again in {wait_s} seconds."
                failure = ErrorInfo(said, _TOO_MANY, retry_after_s=wait_s)
                response = error_response(failure, named=True)
            response.headers.update(headers)
            return response

        return counted

    async def status(self, request: Request) -> Response:
        """Answer how the system is doing."""
        states = {name: engine.state for name, engine in self._engines.items()}
        return JSON(
            {
                "status": next((_WORDS[each] for each in _WORDS if each in states.values()), _DEAD),
                "models": [{"id": name, "status": each.value} for name, each in states.items()],
                "uptime": round(self._performance.uptime_s, 3),
                "performance": self._performance.describe(),
                "metrics": metrics_as_json(self._metrics),
            }
        )


def _caller(request: Request) -> str:
    """Return the identity that calls are counted by: the digest of the key, or the address.

    The key is read from the header that `Keys` checks.
    """
    key = request.headers.get("authorization") or request.headers.get("x-api-key", "")
    if key:
        return hashlib.sha256(key.encode()).hexdigest()
    return request.client.host if request.client is not None else ""
