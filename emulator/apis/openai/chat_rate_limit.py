"""Rate limit of the chat route without a prefix."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request

from emulator.http.responses import error_response
from handler.errors import RATE_LIMITED, ErrorInfo

RouteHandler = Callable[[Request], Coroutine[Any, Any, Any]]


class ChatRateLimiter:
    """Limits the requests of each API key, or of each address if there are no keys.

    `rate` is the setting RATE_LIMIT_CHAT, in the notation of the library `limits` ("10/minute");
    "off" or an empty string disables the limit. Not thread-safe; used in the event loop.

    Raises:
        ValueError: the rate is invalid.
    """

    def __init__(self, rate: str) -> None:
        self._rate: Any = None
        if rate and rate.strip().lower() != "off":
            # Imported only if needed: the package takes 0.1 s to import.
            from limits import parse
            from limits.storage import MemoryStorage
            from limits.strategies import MovingWindowRateLimiter

            self._rate = parse(rate)
            self._window = MovingWindowRateLimiter(MemoryStorage())

    def wrap(self, handler: RouteHandler) -> RouteHandler:
        """Return a route handler that answers 429, before anything else, above the limit."""
        if self._rate is None:
            return handler

        async def handle(request: Request) -> Any:
            client = _client_id(request)
            is_allowed = self._window.hit(self._rate, client)
            stats = self._window.get_window_stats(self._rate, client)
            if is_allowed:
                response = await handler(request)
            else:
                wait_s = max(1, math.ceil(stats.reset_time - time.time()))
                message = f"Rate limit exceeded. Try again in {wait_s} seconds."
                error = ErrorInfo(message, RATE_LIMITED, retry_after_s=wait_s)
                response = error_response(error, request.scope)
            response.headers.update(
                {
                    "X-RateLimit-Limit": str(self._rate.amount),
                    "X-RateLimit-Remaining": str(max(0, stats.remaining)),
                    "X-RateLimit-Reset": str(math.ceil(stats.reset_time)),
                }
            )
            return response

        return handle


def _client_id(request: Request) -> str:
    """Return the digest of the request's API key, or its address if it has no key.

    The key is in the same headers that `ApiKeyMiddleware` checks.
    """
    key = request.headers.get("authorization") or request.headers.get("x-api-key", "")
    if key:
        return hashlib.sha256(key.encode()).hexdigest()
    return request.client.host if request.client is not None else ""
