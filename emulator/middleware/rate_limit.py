"""RunPod's limits on how often a client may call, for whoever wants to meet them at home."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping

from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from emulator.http.request_target import RequestTarget, RouteGroup, classify
from emulator.http.responses import error_response
from handler.errors import ErrorInfo, ErrorMapping

_WINDOW_S = 10
# Calls in ten seconds and at a time, for one endpoint, as RunPod's documentation has them; what it
# adds for each worker is not ours to know. None is no limit.
RATES: Mapping[str, tuple[int, int | None]] = {
    "runsync": (2000, 400),
    "run": (1000, 200),
    "status": (2000, 400),
    "stream": (2000, 400),
    "cancel": (100, 20),
    "purge-queue": (2, None),
    "openai": (2000, 400),
    "requests": (10, 2),
}
_SAME = {"status-sync": "status"}
_TOO_MANY = ErrorMapping(429, "rate_limit_error", retryable=True)


class RateLimitMiddleware:
    """Answers 429 where RunPod would; worker calls and what RunPod does not limit go through."""

    def __init__(
        self,
        app: ASGIApp,
        default_endpoint: str,
        rates: Mapping[str, tuple[int, int | None]] = RATES,
    ) -> None:
        self._app = app
        self._default = default_endpoint
        self._items = {
            name: (RateLimitItemPerSecond(count, _WINDOW_S), at_once)
            for name, (count, at_once) in rates.items()
        }
        self._window = MovingWindowRateLimiter(MemoryStorage())
        self._running: Counter[tuple[str, str]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 429, or let the request through."""
        key = self._key(classify(scope)) if scope["type"] == "http" else None
        if key is None:
            await self._app(scope, receive, send)
            return
        item, at_once = self._items[key[1]]
        if at_once is not None and self._running[key] >= at_once:
            said = f"{at_once} {key[1]} calls of endpoint {key[0]} are already being answered"
            await _refuse(said, 1)(scope, receive, send)
            return
        if not self._window.hit(item, *key):
            wait_s = self._window.get_window_stats(item, *key).reset_time - time.time()
            said = f"more than {item.amount} {key[1]} calls of endpoint {key[0]} in {_WINDOW_S} s"
            await _refuse(said, max(1, math.ceil(wait_s)))(scope, receive, send)
            return
        self._running[key] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def _key(self, call: RequestTarget) -> tuple[str, str] | None:
        """Return the endpoint and the operation that a call is counted under."""
        operation = _SAME.get(call.operation, call.operation)
        if call.group not in (RouteGroup.CLIENT, RouteGroup.OPENAI) or operation not in self._items:
            return None
        return call.endpoint or self._default, operation


def _refuse(said: str, retry_after_s: int) -> ASGIApp:
    return error_response(ErrorInfo(said, _TOO_MANY, retry_after_s=retry_after_s))
