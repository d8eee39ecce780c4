"""Rate limit of the chat route without a prefix."""

from __future__ import annotations

import hashlib
import math
import time
from typing import Any

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emulator.http.api_key import read_api_key
from emulator.http.responses import error_response
from handler.errors import RATE_LIMITED, ErrorInfo


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

    def middleware(self) -> list[Middleware]:
        """Return the middleware of a route, which answers 429 above the limit.

        It is outside of the code that answers exceptions, so that all answers, also errors, have
        the headers with the limit.
        """
        return [] if self._rate is None else [Middleware(self._wrap)]

    def _wrap(self, app: ASGIApp) -> ASGIApp:
        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            client = _client_id(scope)
            is_allowed = self._window.hit(self._rate, client)
            stats = self._window.get_window_stats(self._rate, client)
            headers = [
                (b"x-ratelimit-limit", str(self._rate.amount).encode()),
                (b"x-ratelimit-remaining", str(max(0, stats.remaining)).encode()),
                (b"x-ratelimit-reset", str(math.ceil(stats.reset_time)).encode()),
            ]

            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message["headers"], *headers]}
                await send(message)

            answer = app if is_allowed else _refusal(stats.reset_time, scope)
            await answer(scope, receive, send_with_headers)

        return handle


def _refusal(reset_time: float, scope: Scope) -> ASGIApp:
    wait_s = max(1, math.ceil(reset_time - time.time()))
    message = f"Rate limit exceeded. Try again in {wait_s} seconds."
    return error_response(ErrorInfo(message, RATE_LIMITED, retry_after_s=wait_s), scope)


def _client_id(scope: Scope) -> str:
    """Return the digest of the request's API key, or its address if it has no key."""
    if key := read_api_key(scope):
        return hashlib.sha256(key).hexdigest()
    return scope["client"][0] if scope.get("client") else ""
