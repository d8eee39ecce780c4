"""Server-sent events as a response that owns the generation behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import orjson
from starlette.datastructures import MutableHeaders
from starlette.types import Receive, Scope, Send

from emulator.http.disconnect import disconnected, hang_up
from emulator.http.shutdown_state import STOPPED, stopped

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies that buffer (nginx does by default) would hold the events back.
    (b"x-accel-buffering", b"no"),
]
# Clients skip it; what stands between them and the server sees that the connection is in use.
KEEP_ALIVE = b": still here\n\n"
# Well inside the 30 to 60 s after which proxies take a silent connection for a dead one.
KEEP_ALIVE_S = 15.0
# What a stream ends with that the server's own end has cut short.
FAREWELL = b"event: closing\ndata: " + orjson.dumps(STOPPED.openai_error()) + b"\n\n"
_FAREWELL_S = 0.5


class SSEResponse:
    """Sends blocks of whole events as they come and stops the generation when the client leaves.

    An ASGI application on bytes. `abort` is called on every way out: at the end, on a disconnect
    noticed while waiting for text, while blocked in `send`, and when this task is cancelled before
    it has sent anything. A generator's own `finally` would not do: it does not run when the task
    is cancelled inside `send` (measured), nor when it was never started.

    A task that is cancelled because the server ends says so in a last event, `farewell`: a stream
    that just stops looks like a whole answer to some clients. A comment after each `keep_alive_s`
    of silence keeps proxies from closing the connection; None where the events have their own.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        abort: Callable[[], None],
        farewell: bytes = FAREWELL,
        keep_alive_s: float | None = None,
    ) -> None:
        self._events = events
        self._abort = abort
        self._farewell = farewell
        self._keep_alive_s = keep_alive_s
        self._started = False
        # Whether something is on its way, and when the last thing went out.
        self._sending = True
        self._sent = 0.0
        # As other responses have them, to be added to before it is sent.
        self.headers = MutableHeaders(raw=list(HEADERS))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            async with aclosing(self._events):
                sender = asyncio.create_task(self._send(send))
                gone = asyncio.create_task(disconnected(receive))
                tasks = [sender, gone]
                if self._keep_alive_s is not None:
                    tasks.append(asyncio.create_task(self._keep_alive(send, self._keep_alive_s)))
                try:
                    await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if not sender.done():
                        self._abort()
                except asyncio.CancelledError:
                    self._abort()
                    raise
                finally:
                    for task in tasks:
                        task.cancel()
                    # All must have left the generator and the connection before either is closed.
                    results = await asyncio.gather(*tasks, return_exceptions=True)
                if isinstance(results[0], Exception):
                    raise results[0]
        except asyncio.CancelledError:
            if not (stopped(scope) and self._started):
                raise
            # The cancellation is handled here. As long as it is counted, `asyncio.timeout` of
            # Python before 3.11.4 raises CancelledError instead of TimeoutError.
            if (current := asyncio.current_task()) is not None:
                current.uncancel()
            await self._part(scope, receive, send)
        finally:
            self._abort()

    async def _part(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say why it ends, unless the client has stopped reading. Blocks are sent whole or not."""
        last = {"type": "http.response.body", "body": self._farewell, "more_body": False}
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await send(last)
        except TimeoutError:
            await hang_up(scope, receive)

    async def _send(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        await send({"type": "http.response.start", "status": 200, "headers": self.headers.raw})
        self._started = True
        self._sending = False
        async for block in self._events:
            self._sending = True
            await send({"type": "http.response.body", "body": block, "more_body": True})
            self._sending = False
            self._sent = loop.time()
        self._sending = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send, every_s: float) -> None:
        """Send comments where there is silence, and none while a client does not read."""
        loop = asyncio.get_running_loop()
        wait_s = every_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = self._sent + every_s - loop.time()
            if wait_s <= 0:
                wait_s = every_s
                if not self._sending:
                    comment = {"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True}
                    await send(comment)
