"""RunPod's rate limits, for rules with the fault `rate-limits`."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping

from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from emulator.http.responses import error_response
from emulator.http.route_facts import RequestRoute, read_route
from handler.errors import RATE_LIMITED, ErrorInfo

_WINDOW_S = 10
# Requests in ten seconds, and concurrent requests (None: no limit), for one endpoint, from RunPod's
# documentation. RunPod's additional allowance per worker is not documented.
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


class RateLimitMiddleware:
    """Answers 429 where RunPod would; workers' requests are not limited."""

    def __init__(
        self,
        app: ASGIApp,
        default_endpoint: str,
        rates: Mapping[str, tuple[int, int | None]] = RATES,
    ) -> None:
        self._app = app
        self._default_endpoint = default_endpoint
        self._limits = {
            name: (RateLimitItemPerSecond(count, _WINDOW_S), concurrency)
            for name, (count, concurrency) in rates.items()
        }
        self._window = MovingWindowRateLimiter(MemoryStorage())
        self._running: Counter[tuple[str, str]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 429, or pass the request on."""
        key = self._find_key(read_route(scope)) if scope["type"] == "http" else None
        if key is None:
            await self._app(scope, receive, send)
            return
        rate, concurrency = self._limits[key[1]]
        if concurrency is not None and self._running[key] >= concurrency:
            message = (
                f"{concurrency} {key[1]} calls of endpoint {key[0]} are already being answered"
            )
            await _rate_limit_error(message, 1, scope)(scope, receive, send)
            return
        if not self._window.hit(rate, *key):
            wait_s = self._window.get_window_stats(rate, *key).reset_time - time.time()
            message = (
                f"more than {rate.amount} {key[1]} calls of endpoint {key[0]} in {_WINDOW_S} s"
            )
            await _rate_limit_error(message, max(1, math.ceil(wait_s)), scope)(scope, receive, send)
            return
        self._running[key] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def _find_key(self, request_route: RequestRoute) -> tuple[str, str] | None:
        """Return the endpoint and limit that a request is counted under; None if it is not."""
        limit = request_route.facts.rate_limit
        if limit is None or limit not in self._limits:
            return None
        return request_route.endpoint or self._default_endpoint, limit


def _rate_limit_error(message: str, retry_after_s: int, scope: Scope) -> ASGIApp:
    return error_response(ErrorInfo(message, RATE_LIMITED, retry_after_s=retry_after_s), scope)
