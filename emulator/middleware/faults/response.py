"""Send a response with the faults that its request asked for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from enum import Enum

from starlette.datastructures import MutableHeaders
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emulator.http.disconnect import abort_connection, wait_disconnected
from emulator.http.responses import error_response
from emulator.http.route_facts import read_route
from emulator.http.shutdown_state import SCOPE_KEY, ShutdownState
from emulator.middleware.faults.catalogue import JSON_FAULTS, REPLACEMENTS
from emulator.middleware.faults.events import (
    WRITE_PAUSE_S,
    EventSplitter,
    Pause,
    Step,
    StreamEnd,
    StreamFaults,
    Write,
)
from emulator.middleware.faults.parser import Faults
from handler.errors import ErrorInfo, ErrorMapping

_HTML_502 = (
    "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n"
    "<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx</center>\r\n"
    "</body>\r\n</html>\r\n"
)
_INVALID_JSON = b"{'object': 'text_completion', 'choices': [None], 'ok': True}"
_REPLACEMENT_NAMES = frozenset(kind.name for kind in REPLACEMENTS)
_JSON_FAULT_NAMES = frozenset(kind.name for kind in JSON_FAULTS)
# The error types of OpenAI's API by status.
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_ERROR_NAMES = {429: "rate_limit_exceeded", 503: "service_unavailable"}
_ERROR_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


class _BodyMode(Enum):
    UNCHANGED = "unchanged"
    EVENTS = "events"
    JSON = "json"


class FaultyResponse:
    """The response to one request, with faults.

    The application behind it never fails because of a fault. A response that replaces its own is
    sent without calling it. If a fault cuts the connection or ends the response early, the server
    reports a disconnect to the application, which then aborts the generation. All other responses
    are completed by the application.
    """

    def __init__(self, faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        self._faults = faults
        self._scope = scope
        self._receive_message = receive
        self._send_message = send
        # Calls of `receive` by the application that have not returned.
        self._pending_receives = 0
        self._is_ended = False
        self._mode = _BodyMode.UNCHANGED
        self._start: Message = {}
        self._json_body = bytearray()
        facts = read_route(scope).facts
        self._format = facts.wire_format
        self._splitter = EventSplitter(facts.wire_format)
        self._stream = StreamFaults(faults, facts.wire_format)

    async def run(self, app: ASGIApp) -> None:
        """Send the response that replaces that of the application, or run the application."""
        if not self._faults.keys() & _REPLACEMENT_NAMES:
            await app(self._scope, self._receive, self._send)
            return
        if "reset" in self._faults or "close" in self._faults:
            await self._pause(self._faults.get("delay", 0))
            if not await self._cut(reset="reset" in self._faults):
                await self._send_error(500)
        elif "html-502" in self._faults:
            response = HTMLResponse(_HTML_502, 502)
            if "retry-after" in self._faults:
                response.headers["retry-after"] = f"{self._faults['retry-after']:g}"
            await response(self._scope, self._receive, self._send)
        else:
            await self._send_error(int(self._faults["status"]))

    async def _send_error(self, status: int) -> None:
        kind = _ERROR_TYPES.get(status)
        if kind is None:
            kind = "invalid_request_error" if status < 500 else "internal_error"
        mapping = ErrorMapping(
            status, kind, name=_ERROR_NAMES.get(status), code=_ERROR_CODES.get(status)
        )
        retry_after = self._faults.get("retry-after")
        failure = ErrorInfo(
            "this request failed on purpose, as x-fault requires",
            mapping,
            retry_after_s=None if retry_after is None else int(retry_after),
        )
        response = error_response(failure, self._scope)
        if retry_after is not None:
            response.headers["retry-after"] = f"{retry_after:g}"
        await response(self._scope, self._receive, self._send)

    # -- the interface of the application ---------------------------------------------------------

    async def _receive(self) -> Message:
        self._pending_receives += 1
        try:
            return await self._receive_message()
        finally:
            self._pending_receives -= 1

    async def _send(self, message: Message) -> None:
        if self._is_ended:
            return
        if message["type"] == "http.response.start":
            await self._begin(message)
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        if self._mode is _BodyMode.EVENTS:
            await self._send_events(body, is_last)
        elif self._mode is _BodyMode.JSON:
            self._json_body += body
            if is_last:
                await self._send_json(bytes(self._json_body))
        else:
            await self._send_message(message)

    # -- the response -----------------------------------------------------------------------------

    async def _begin(self, start: Message) -> None:
        """Send the head, or keep it until the length of the body is known."""
        await self._pause(self._faults.get("delay", 0))
        start = {**start, "headers": list(start["headers"])}
        headers = MutableHeaders(raw=start["headers"])
        content_type = headers.get("content-type", "")
        if content_type.startswith(self._format.content_type):
            self._mode = _BodyMode.EVENTS
        elif content_type.startswith("application/json") and self._faults.keys() & (
            _JSON_FAULT_NAMES
        ):
            self._mode = _BodyMode.JSON
        if "wrong-content-type" in self._faults:
            headers["content-type"] = "text/html; charset=utf-8"
        if "false-gzip" in self._faults:
            headers["content-encoding"] = "gzip"
        if "empty-body" in self._faults:
            headers["content-length"] = "0"
            await self._send_message(start)
            await self._complete()
        elif self._mode is _BodyMode.JSON:
            self._start = start
        else:
            await self._send_message(start)
            if self._mode is _BodyMode.EVENTS:
                await self._take_steps(self._stream.begin())

    async def _send_json(self, body: bytes) -> None:
        headers = MutableHeaders(raw=self._start["headers"])
        sent = _INVALID_JSON if "invalid-json" in self._faults else body[: len(body) // 2]
        is_cut = "truncated-body" in self._faults
        headers["content-length"] = str(len(body) if is_cut else len(sent))
        await self._send_message(self._start)
        await self._write(sent)
        if not is_cut:
            await self._complete()
        elif not await self._cut():
            # Without support of the server, the promised bytes must follow.
            await self._send_message({"type": "http.response.body", "body": body[len(sent) :]})

    async def _send_events(self, body: bytes, is_last: bool) -> None:
        for event in self._splitter.feed(body):
            await self._take_steps(self._stream.feed(event))
            if self._is_ended:
                return
        if is_last:
            await self._take_steps(self._stream.finish())
            await self._complete()

    async def _take_steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, Write):
                await self._write(step.data)
            elif isinstance(step, Pause):
                await self._pause(step.seconds)
            elif step is StreamEnd.COMPLETE or not await self._cut():
                await self._complete()

    async def _write(self, data: bytes) -> None:
        await self._send_message({"type": "http.response.body", "body": data, "more_body": True})

    async def _complete(self) -> None:
        self._is_ended = True
        await self._send_message({"type": "http.response.body", "body": b""})

    async def _cut(self, *, reset: bool = False) -> bool:
        """Cut the connection; return False if the server does not support that."""
        # The event loop may write only in its next turn, and an abort discards unwritten bytes.
        await asyncio.sleep(WRITE_PAUSE_S)
        is_cut = await abort_connection(self._scope, self._receive_message, reset=reset)
        self._is_ended = is_cut
        return is_cut

    async def _pause(self, seconds: float) -> None:
        """Wait until the time is over, the client has disconnected or the server shuts down."""
        shutdown = self._scope.get(SCOPE_KEY)
        if isinstance(shutdown, ShutdownState):
            await shutdown.wait_until_draining(self._wait(seconds), None)
        else:
            await self._wait(seconds)

    async def _wait(self, seconds: float) -> None:
        # Tasks of the application that have just been created may call `receive` first.
        await asyncio.sleep(0)
        if self._pending_receives or not seconds:
            # The application itself waits for a disconnect, and then cancels this task. Two tasks
            # must not call `receive` at the same time.
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wait_disconnected(self._receive_message)
