"""A stream of events or lines as a response that owns the generation that produces them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import orjson
from starlette.datastructures import MutableHeaders
from starlette.types import Receive, Scope, Send

from emulator.http.disconnect import abort_connection, wait_disconnected
from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR, is_cancelled_by_shutdown
from handler.apis.core.wire_format import EVENT_STREAM, NOTHING_SENT, SentBlocks

HEADERS = [
    (b"cache-control", b"no-cache"),
    # Proxies that buffer (nginx does by default) would hold the events back.
    (b"x-accel-buffering", b"no"),
]
# Clients ignore a comment; proxies see that the connection is in use.
COMMENT = b": still here\n\n"
# For streams of the server itself. Well below the 30 to 60 s after which proxies close a silent
# connection.
COMMENTS_AFTER_S = 15.0
# The last event of a stream that a shutdown of the server cuts short.
CLOSING_EVENT = (
    b"event: closing\ndata: " + orjson.dumps(SHUTTING_DOWN_ERROR.openai_error()) + b"\n\n"
)
_CLOSING_EVENT_TIMEOUT_S = 0.5


class SSEResponse:
    """Sends blocks of whole events as they come; aborts the generation if the client disconnects.

    An ASGI application on bytes. `abort` is always called: at the end of the stream, on a
    disconnect while waiting for text or while blocked in `send`, and when this task is cancelled
    before it has sent anything. A generator's own `finally` is not enough: it does not run when the
    task is cancelled inside `send` (measured), nor if the generator was never started.

    If the task is cancelled because the server shuts down, what `encode_closing` returns for the
    blocks that were sent is sent last: some clients take a stream that just stops for a complete
    response. After each `comments_after_s` without an event, a comment is sent so that proxies keep
    the connection open; None if the events themselves include such comments, if there shall be
    none, or if `content_type` is another format, which has none. The header of a text type has a
    charset: without one, requests decodes text as ISO-8859-1 (`get_encoding_from_headers`).
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        abort: Callable[[], None],
        encode_closing: Callable[[SentBlocks], bytes] = lambda sent: CLOSING_EVENT,
        comments_after_s: float | None = None,
        content_type: str = EVENT_STREAM,
    ) -> None:
        self._events = events
        self._abort = abort
        self._encode_closing = encode_closing
        self._sent = NOTHING_SENT
        self._comments_after_s = comments_after_s
        self._is_started = False
        # Whether a `send` is in progress, and when the last one ended (loop time).
        self._is_sending = True
        self._sent_at = 0.0
        # Middleware may add headers before the response is sent, as to Starlette's responses.
        self.headers = MutableHeaders(raw=list(HEADERS))
        charset = "; charset=utf-8" if content_type.startswith("text/") else ""
        self.headers["content-type"] = content_type + charset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            async with aclosing(self._events):
                sender = asyncio.create_task(self._send(send))
                disconnect = asyncio.create_task(wait_disconnected(receive))
                tasks = [sender, disconnect]
                if self._comments_after_s is not None:
                    tasks.append(
                        asyncio.create_task(self._send_comments(send, self._comments_after_s))
                    )
                try:
                    await asyncio.wait({sender, disconnect}, return_when=asyncio.FIRST_COMPLETED)
                    if not sender.done():
                        self._abort()
                except asyncio.CancelledError:
                    self._abort()
                    raise
                finally:
                    for task in tasks:
                        task.cancel()
                    # The tasks must end before the generator and the connection are closed.
                    results = await asyncio.gather(*tasks, return_exceptions=True)
                if isinstance(results[0], Exception):
                    raise results[0]
        except asyncio.CancelledError:
            if not (is_cancelled_by_shutdown(scope) and self._is_started):
                raise
            # The cancellation ends here. While `cancelling()` still counts it, `asyncio.timeout`
            # raises CancelledError instead of TimeoutError in Python before 3.11.4.
            if (current := asyncio.current_task()) is not None:
                current.uncancel()
            await self._send_closing_event(scope, receive, send)
        finally:
            self._abort()

    async def _send_closing_event(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the last event, or cut the connection if the client does not read.

        Blocks are sent whole or not at all, so this event is never appended to half an event.
        """
        last = {
            "type": "http.response.body",
            "body": self._encode_closing(self._sent),
            "more_body": False,
        }
        try:
            async with asyncio.timeout(_CLOSING_EVENT_TIMEOUT_S):
                await send(last)
        except TimeoutError:
            await abort_connection(scope, receive)

    async def _send(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        await send({"type": "http.response.start", "status": 200, "headers": self.headers.raw})
        self._is_started = True
        self._is_sending = False
        async for block in self._events:
            self._is_sending = True
            await send({"type": "http.response.body", "body": block, "more_body": True})
            self._is_sending = False
            self._sent_at = loop.time()
            if block is not COMMENT:
                self._sent = SentBlocks(self._sent.first or block, block)
        self._is_sending = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_comments(self, send: Send, interval_s: float) -> None:
        """Send a comment after each `interval_s` without an event, unless a `send` is blocked."""
        loop = asyncio.get_running_loop()
        wait_s = interval_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = self._sent_at + interval_s - loop.time()
            if wait_s <= 0:
                wait_s = interval_s
                if not self._is_sending:
                    comment = {"type": "http.response.body", "body": COMMENT, "more_body": True}
                    await send(comment)
