"""The streamed response: what it sends (R19), and that it aborts on every way out (R31)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from emulator.sse import SSEResponse

Connect = Callable[..., Any]


class Source:
    """Blocks to send, one when it is told to, and a count of what the response did to it."""

    def __init__(self, *blocks: bytes, error: Exception | None = None) -> None:
        self._blocks = blocks
        self._error = error
        self.waiting = asyncio.Event()
        self.go = asyncio.Event()
        self.aborts = 0
        self.closed = False

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            for block in self._blocks:
                yield block
            self.waiting.set()
            await self.go.wait()
            if self._error is not None:
                raise self._error
            yield b"last"
        finally:
            self.closed = True

    def abort(self) -> None:
        self.aborts += 1

    def response(self) -> SSEResponse:
        return SSEResponse(self.events(), self.abort)


pytestmark = pytest.mark.usefixtures("no_tasks_left")


async def respond(source: Source, peer: Any) -> asyncio.Task[None]:
    await peer.receive()
    task = asyncio.create_task(source.response()({}, peer.receive, peer.send))
    await asyncio.sleep(0)
    return task


async def test_whole_stream(connection: Connect) -> None:
    source, peer = Source(b"a", b"b"), connection()
    source.go.set()
    await (await respond(source, peer))
    start, *bodies = peer.sent
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert dict(start["headers"]) == {
        b"content-type": b"text/event-stream; charset=utf-8",
        b"cache-control": b"no-cache",
        b"x-accel-buffering": b"no",
    }
    assert [(body["body"], body["more_body"]) for body in bodies] == [
        (b"a", True),
        (b"b", True),
        (b"last", True),
        (b"", False),
    ]
    assert source.aborts == 1
    assert source.closed


async def test_each_block_is_sent_before_the_next_is_there(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    task = await respond(source, peer)
    await source.waiting.wait()
    assert peer.body == b"a"
    assert (source.aborts, task.done()) == (0, False)
    source.go.set()
    await task


async def test_client_that_leaves_while_the_model_thinks(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    task = await respond(source, peer)
    await source.waiting.wait()
    peer.left.set()
    await task
    assert source.aborts >= 1
    assert source.closed
    # The response is left unfinished: what it lacks must not look like its end.
    assert peer.sent[-1]["more_body"]


async def test_client_that_had_left_before_the_first_event(connection: Connect) -> None:
    source, peer = Source(), connection()
    peer.left.set()
    await (await respond(source, peer))
    assert source.aborts >= 1


async def test_client_that_leaves_while_it_does_not_read(connection: Connect) -> None:
    source, peer = Source(b"a", b"b"), connection()
    peer.reading.clear()
    task = await respond(source, peer)
    await peer.blocked.wait()
    peer.left.set()
    await task
    assert source.aborts >= 1
    assert peer.sent == []


async def test_abort_comes_before_the_wait_for_the_tasks(connection: Connect) -> None:
    """A sender that is slow to leave must not keep the model running."""
    source, peer = Source(b"a"), connection()
    aborts_seen: list[int] = []
    sending = asyncio.Event()

    async def send(message: Any) -> None:
        sending.set()
        try:
            await asyncio.Event().wait()
        finally:
            aborts_seen.append(source.aborts)

    await peer.receive()
    task = asyncio.create_task(source.response()({}, peer.receive, send))
    await sending.wait()
    peer.left.set()
    await task
    assert aborts_seen == [1]


async def test_cancelled_while_the_model_thinks(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    task = await respond(source, peer)
    await source.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.aborts >= 1
    assert source.closed


async def test_cancelled_inside_send(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    task = await respond(source, peer)
    await source.waiting.wait()
    peer.reading.clear()
    source.go.set()
    await peer.blocked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.aborts >= 1
    assert source.closed


async def test_cancelled_before_anything_was_sent(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    await peer.receive()

    async def respond_late() -> None:
        # Cancelled at its first suspension: the sender has not run at all.
        await source.response()({}, peer.receive, peer.send)

    task = asyncio.create_task(respond_late())
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.aborts >= 1


async def test_error_of_the_source_is_raised_and_the_response_left_unfinished(
    connection: Connect,
) -> None:
    source, peer = Source(b"a", error=ValueError("a bug")), connection()
    source.go.set()
    task = await respond(source, peer)
    with pytest.raises(ValueError, match="a bug"):
        await task
    assert source.aborts >= 1
    assert peer.sent[-1] == {"type": "http.response.body", "body": b"a", "more_body": True}


async def test_error_of_send_is_raised(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    await peer.receive()

    async def send(message: Any) -> None:
        raise OSError("broken pipe")

    with pytest.raises(OSError, match="broken pipe"):
        await source.response()({}, peer.receive, send)
    assert source.aborts >= 1


@pytest.mark.parametrize("turns", range(6))
async def test_cancelled_at_any_turn(connection: Connect, turns: int) -> None:
    source, peer = Source(b"a", b"b"), connection()
    task = await respond(source, peer)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert source.aborts >= 1
