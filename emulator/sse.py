"""Server-sent events as a response that owns the generation behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from emulator.disconnect import disconnected

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies that buffer (nginx does by default) would hold the events back.
    (b"x-accel-buffering", b"no"),
]


class SSEResponse:
    """Sends blocks of whole events as they come and stops the generation when the client leaves.

    An ASGI application on bytes. `abort` is called on every way out: at the end, on a disconnect
    noticed while waiting for text, while blocked in `send`, and when this task is cancelled before
    it has sent anything. A generator's own `finally` would not do: it does not run when the task
    is cancelled inside `send` (measured), nor when it was never started.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], abort: Callable[[], None]) -> None:
        self._events = events
        self._abort = abort

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            async with aclosing(self._events):
                sender = asyncio.create_task(self._send(send))
                gone = asyncio.create_task(disconnected(receive))
                try:
                    await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if not sender.done():
                        self._abort()
                finally:
                    sender.cancel()
                    gone.cancel()
                    # Both must have left the generator and the connection before either is closed.
                    results = await asyncio.gather(sender, gone, return_exceptions=True)
                if isinstance(results[0], Exception):
                    raise results[0]
        finally:
            self._abort()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        async for block in self._events:
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
