"""Send a response with the faults that its request asked for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from enum import Enum

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emulator.http.disconnect import wait_disconnected
from emulator.http.route_facts import read_route
from emulator.http.shutdown_state import SCOPE_KEY, ShutdownState
from emulator.middleware.faults.catalogue import JSON_FAULTS
from emulator.middleware.faults.events import EventSplitter
from emulator.middleware.faults.json_bodies import change_json_body
from emulator.middleware.faults.parser import Faults
from emulator.middleware.faults.replacements import build_error, build_replacement
from emulator.middleware.faults.steps import Pause, RawWrite, Step, StreamEnd, Write
from emulator.middleware.faults.stream import StreamFaults
from emulator.middleware.faults.wire import FaultyWire

_JSON_FAULT_NAMES = frozenset(kind.name for kind in JSON_FAULTS)
# With one of these, the length of the body is not the one that the application declares.
_LENGTH_FAULT_NAMES = frozenset({"gzip", "until-close", "content-length"})


class _BodyMode(Enum):
    UNCHANGED = "unchanged"
    COPIED = "copied part by part"
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
        self._wire = FaultyWire(faults, scope, receive, send)
        # Calls of `receive` by the application that have not returned.
        self._pending_receives = 0
        self._mode = _BodyMode.UNCHANGED
        self._start: Message = {}
        self._json_body = bytearray()
        facts = read_route(scope).facts
        self._format = facts.wire_format
        self._splitter = EventSplitter(facts.wire_format)
        self._stream = StreamFaults(faults, facts.wire_format)

    async def run(self, app: ASGIApp) -> None:
        """Send the response that replaces that of the application, or run the application."""
        if "reset" in self._faults or "close" in self._faults:
            await self._pause(self._faults.get("delay", 0))
            if not await self._wire.cut(reset="reset" in self._faults):
                response = build_error(500, None, self._scope)
                await response(self._scope, self._receive, self._send)
            return
        replacement = build_replacement(self._faults, self._scope)
        await (app if replacement is None else replacement)(self._scope, self._receive, self._send)

    # -- the interface of the application ---------------------------------------------------------

    async def _receive(self) -> Message:
        self._pending_receives += 1
        try:
            return await self._receive_message()
        finally:
            self._pending_receives -= 1

    async def _send(self, message: Message) -> None:
        if self._wire.is_ended:
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
        elif self._mode is _BodyMode.COPIED:
            await self._wire.write(body)
            if is_last:
                await self._wire.complete()
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
        elif self._faults.keys() & _LENGTH_FAULT_NAMES:
            self._mode = _BodyMode.COPIED
        if "empty-body" in self._faults:
            headers["content-length"] = "0"
            await self._wire.start(start)
            await self._wire.complete()
        elif self._mode is _BodyMode.JSON:
            self._start = start
        else:
            await self._wire.start(start)
            if self._mode is _BodyMode.EVENTS:
                await self._take_steps(self._stream.begin())

    async def _send_json(self, body: bytes) -> None:
        headers = MutableHeaders(raw=self._start["headers"])
        sent = change_json_body(body, self._faults)
        is_cut = "truncated-body" in self._faults
        headers["content-length"] = str(len(body) if is_cut else len(sent))
        await self._wire.start(self._start)
        await self._wire.write(sent)
        if not is_cut:
            await self._wire.complete()
        elif not await self._wire.cut():
            # Without support of the server, the promised bytes must follow.
            await self._send_message({"type": "http.response.body", "body": body[len(sent) :]})

    async def _send_events(self, body: bytes, is_last: bool) -> None:
        for event in self._splitter.feed(body):
            await self._take_steps(self._stream.feed(event))
            if self._wire.is_ended:
                return
        if is_last:
            await self._take_steps(self._stream.finish())
            await self._wire.complete()

    async def _take_steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, Write):
                await self._wire.write(step.data)
            elif isinstance(step, RawWrite):
                self._wire.write_raw(step.data)
            elif isinstance(step, Pause):
                await self._pause(step.seconds)
            elif not await self._end(step):
                await self._wire.complete()

    async def _end(self, end: StreamEnd) -> bool:
        """End the connection as a fault requires; return False if the response only ends."""
        if end is StreamEnd.COMPLETE:
            return False
        if end is StreamEnd.HALF_CLOSE:
            return await self._wire.half_close()
        return await self._wire.cut(reset=end is StreamEnd.RESET)

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
