"""Responses with faults, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from emulator.http.disconnect import ABORT_EXTENSION
from emulator.http.shutdown_state import SCOPE_KEY, ShutdownState
from emulator.middleware.faults.parser import parse_faults
from emulator.middleware.faults.response import FaultyResponse
from tests.unit.emulator.asgi import AsgiResponse, call
from tests.unit.emulator.server_routes import with_route
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks

EVENTS = b'data: {"choices": []}\n\n' * 3


class Application:
    """Sends a response in several messages."""

    def __init__(self, content_type: str, *parts: bytes) -> None:
        self._headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", b"%d" % len(b"".join(parts))),
        ]
        self._parts = parts
        self.is_finished = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        self.is_finished = True


class Connection:
    """A connection that a fault may cut; `sent` has the messages that the server gets."""

    def __init__(self) -> None:
        self.is_lost = asyncio.Event()
        self.cuts: list[str] = []
        self.sent: list[MutableMapping[str, Any]] = []

    def scope(self) -> dict[str, Any]:
        def cut(how: str) -> None:
            self.cuts.append(how)
            self.is_lost.set()

        abort = {"abort": lambda: cut("abort"), "reset": lambda: cut("reset")}
        return with_route({"type": "http", "path": "/run", "extensions": {ABORT_EXTENSION: abort}})

    async def receive(self) -> dict[str, Any]:
        await self.is_lost.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def respond(faults: str, app: Application) -> AsgiResponse:
    """Return the response on a server that cannot cut connections."""

    async def faulty(scope: Any, receive: Any, send: Any) -> None:
        await FaultyResponse(parse_faults(faults), scope, receive, send).run(app)

    return await call(faulty, "/run")


@pytest.mark.parametrize("fault", ["reset", "close"])
async def test_connection_that_cannot_be_cut_gets_500(fault: str) -> None:
    app = Application("application/json", b"{}")
    response = await respond(fault, app)
    assert response.status == 500
    assert "on purpose" in response.reason
    assert not app.is_finished


async def test_body_that_cannot_be_cut_is_complete() -> None:
    body = b'{"a": 1}'
    assert (await respond("truncated-body", Application("application/json", body))).body == body


async def test_stream_that_cannot_be_cut_ends() -> None:
    app = Application("text/event-stream", EVENTS)
    assert (await respond("drop-after=1", app)).body == EVENTS[: len(EVENTS) // 3]
    assert app.is_finished


@pytest.mark.parametrize("parts", [(b'{"a', b'": 1', b"}"), (b'{"a": 1}',), ()])
async def test_json_body_of_several_messages_is_truncated(parts: tuple[bytes, ...]) -> None:
    response = await respond("truncated-json", Application("application/json", *parts))
    assert response.body == b"".join(parts)[: len(b"".join(parts)) // 2]
    assert response.headers["content-length"] == str(len(response.body))


@pytest.mark.parametrize("fault", ["truncated-json", "invalid-json", "crlf", "empty-data"])
async def test_other_content_is_unchanged(fault: str) -> None:
    app = Application("text/plain", b"one ", b"two")
    assert (await respond(fault, app)).body == b"one two"


@pytest.mark.parametrize(
    ("fault", "how", "sent"),
    [("reset", "reset", b""), ("close", "abort", b""), ("drop-after=2", "abort", b"data: " * 2)],
)
async def test_cut_sends_nothing_more(fault: str, how: str, sent: bytes) -> None:
    connection = Connection()
    app = Application("text/event-stream", EVENTS)
    response = FaultyResponse(
        parse_faults(fault), connection.scope(), connection.receive, connection.send
    )
    await response.run(app)
    assert connection.cuts == [how]
    assert connection.body().count(b"data: ") == sent.count(b"data: ")
    assert all(message.get("more_body", True) for message in connection.sent)


@pytest.mark.parametrize("fault", ["delay=300", "stall=300", "slow=10", "delay=300; status=500"])
@pytest.mark.parametrize("ending", ["shutdown", "disconnect"])
async def test_pause_ends_early(fault: str, ending: str) -> None:
    connection, shutdown = Connection(), ShutdownState()
    app = Application("text/event-stream", EVENTS)
    scope = {**connection.scope(), SCOPE_KEY: shutdown}
    response = FaultyResponse(parse_faults(fault), scope, connection.receive, connection.send)
    task = asyncio.create_task(response.run(app))
    await run_ready_tasks()
    if ending == "shutdown":
        shutdown.start_draining()
    else:
        connection.is_lost.set()
    async with asyncio.timeout(30):
        await task


async def test_delay_of_an_error_is_not_doubled(clock: VirtualClock) -> None:
    connection, faults = Connection(), parse_faults("delay=5; status=500")
    response = FaultyResponse(faults, connection.scope(), connection.receive, connection.send)
    await response.run(Application("application/json"))
    assert clock.elapsed_s == pytest.approx(5)


async def test_pause_leaves_receiving_to_the_application() -> None:
    connection = Connection()
    receivers: list[asyncio.Task[Any] | None] = []

    async def receive() -> dict[str, Any]:
        receivers.append(asyncio.current_task())
        return await connection.receive()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        disconnect = asyncio.create_task(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        disconnect.cancel()
        await asyncio.gather(disconnect, return_exceptions=True)

    faults = parse_faults("delay=0.01")
    await FaultyResponse(faults, connection.scope(), receive, connection.send).run(app)
    assert len(receivers) == 1
    assert receivers[0] is not asyncio.current_task()
    assert len(connection.sent) == 2
