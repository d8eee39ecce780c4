"""The streamed response sends valid events (R19) and aborts however it ends (R31)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from emulator.http.disconnect import ABORT_EXTENSION
from emulator.http.shutdown_state import ShutdownState
from emulator.http.sse import CLOSING_EVENT, COMMENT, SSEResponse
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks, wait_until

Connect = Callable[..., Any]


class Source:
    """Yields its blocks, then the last one or an error after `go`; counts the response's aborts."""

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

    def response(self, comments_after_s: float | None = None) -> SSEResponse:
        return SSEResponse(self.events(), self.abort, comments_after_s=comments_after_s)


pytestmark = pytest.mark.usefixtures("no_tasks_left")


async def respond(
    source: Source, peer: Any, comments_after_s: float | None = None
) -> asyncio.Task[None]:
    await peer.receive()
    task = asyncio.create_task(source.response(comments_after_s)({}, peer.receive, peer.send))
    await run_ready_tasks()
    return task


async def test_complete_stream(connection: Connect) -> None:
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


async def test_each_block_is_sent_before_the_next_one_exists(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    task = await respond(source, peer)
    await source.waiting.wait()
    assert peer.body == b"a"
    assert (source.aborts, task.done()) == (0, False)
    source.go.set()
    await task


async def test_abort_is_called_when_the_client_leaves_between_events(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    task = await respond(source, peer)
    await source.waiting.wait()
    peer.left.set()
    await task
    assert source.aborts >= 1
    assert source.closed
    # The response stays unfinished, so that the client does not take it for complete.
    assert peer.sent[-1]["more_body"]


async def test_abort_is_called_when_the_client_left_before_the_first_event(
    connection: Connect,
) -> None:
    source, peer = Source(), connection()
    peer.left.set()
    await (await respond(source, peer))
    assert source.aborts >= 1


async def test_abort_is_called_when_a_blocked_client_leaves(connection: Connect) -> None:
    source, peer = Source(b"a", b"b"), connection()
    peer.reading.clear()
    task = await respond(source, peer)
    await peer.blocked.wait()
    peer.left.set()
    await task
    assert source.aborts >= 1
    assert peer.sent == []


async def test_abort_is_called_before_the_tasks_end(connection: Connect) -> None:
    """A sender that is slow to leave must not keep the model running."""
    source, peer = Source(b"a"), connection()
    abort_counts: list[int] = []
    sending = asyncio.Event()

    async def send(message: Any) -> None:
        sending.set()
        try:
            await asyncio.Event().wait()
        finally:
            abort_counts.append(source.aborts)

    await peer.receive()
    task = asyncio.create_task(source.response()({}, peer.receive, send))
    await sending.wait()
    peer.left.set()
    await task
    assert abort_counts == [1]


async def test_abort_is_called_when_cancelled_between_events(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    task = await respond(source, peer)
    await source.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.aborts >= 1
    assert source.closed


async def test_abort_is_called_when_cancelled_inside_send(connection: Connect) -> None:
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


async def test_abort_is_called_when_cancelled_before_the_start(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    await peer.receive()

    async def respond_late() -> None:
        # The task is cancelled at its first suspension, before the sender has run.
        await source.response()({}, peer.receive, peer.send)

    task = asyncio.create_task(respond_late())
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.aborts >= 1


async def test_exception_of_the_events_is_raised_and_leaves_the_response_unfinished(
    connection: Connect,
) -> None:
    source, peer = Source(b"a", error=ValueError("a bug")), connection()
    source.go.set()
    task = await respond(source, peer)
    with pytest.raises(ValueError, match="a bug"):
        await task
    assert source.aborts >= 1
    assert peer.sent[-1] == {"type": "http.response.body", "body": b"a", "more_body": True}


async def test_exception_of_send_is_raised(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    await peer.receive()

    async def send(message: Any) -> None:
        raise OSError("broken pipe")

    with pytest.raises(OSError, match="broken pipe"):
        await source.response()({}, peer.receive, send)
    assert source.aborts >= 1


@pytest.mark.parametrize("turns", range(6))
async def test_abort_is_called_when_cancelled_at_any_turn(connection: Connect, turns: int) -> None:
    source, peer = Source(b"a", b"b"), connection()
    task = await respond(source, peer)
    await run_ready_tasks(turns)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert source.aborts >= 1


# -- the server's end ------------------------------------------------------------------------------


def ending(deadline_passed: bool = True) -> dict[str, Any]:
    shutdown = ShutdownState()
    if deadline_passed:
        shutdown.pass_deadline()
    return {"emulator.shutdown": shutdown}


async def cancelled(source: Source, peer: Any, scope: dict[str, Any]) -> asyncio.Task[None]:
    await peer.receive()
    task = asyncio.create_task(source.response()(scope, peer.receive, peer.send))
    await source.waiting.wait()
    task.cancel()
    return task


async def test_shutdown_sends_the_closing_event(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    await (await cancelled(source, peer, ending()))
    assert peer.body == b"a" + CLOSING_EVENT
    assert not peer.sent[-1]["more_body"]
    assert source.aborts >= 1
    assert source.closed


async def test_other_cancellation_sends_no_closing_event(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    with pytest.raises(asyncio.CancelledError):
        await (await cancelled(source, peer, ending(deadline_passed=False)))
    assert peer.body == b"a"


async def test_blocked_client_is_cut_at_shutdown(connection: Connect) -> None:
    source, peer = Source(b"a", b"b"), connection()
    task = asyncio.create_task(
        source.response()(
            {**ending(), "extensions": {ABORT_EXTENSION: {"abort": peer.left.set}}},
            peer.receive,
            peer.send,
        )
    )
    await source.waiting.wait()
    peer.reading.clear()
    task.cancel()
    async with asyncio.timeout(30):
        await task
    assert peer.left.is_set()
    assert CLOSING_EVENT not in peer.body


async def test_stream_that_has_not_started_sends_no_response(connection: Connect) -> None:
    source, peer = Source(b"a"), connection()
    peer.reading.clear()
    await peer.receive()
    task = asyncio.create_task(source.response()(ending(), peer.receive, peer.send))
    await peer.blocked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert peer.sent == []


# -- silence ---------------------------------------------------------------------------------------


async def test_comments_are_sent_during_silence(connection: Connect) -> None:  # R19
    source, peer = Source(b"a"), connection()
    task = await respond(source, peer, 0.01)
    await wait_until(lambda: peer.body == b"a" + 3 * COMMENT)
    source.go.set()
    await task
    assert peer.body.removeprefix(b"a").replace(COMMENT, b"") == b"last"
    assert peer.body.endswith(b"last")


async def test_busy_stream_has_no_comments(connection: Connect) -> None:
    source, peer = Source(*[b"a"] * 1000), connection()
    source.go.set()
    await (await respond(source, peer, 60))
    assert peer.body == b"a" * 1000 + b"last"


async def test_blocked_client_gets_no_comments(connection: Connect, clock: VirtualClock) -> None:
    source, peer = Source(b"a"), connection()
    task = await respond(source, peer, 0.01)
    await source.waiting.wait()
    peer.reading.clear()
    source.go.set()
    await peer.blocked.wait()
    # Ten times the interval of comments.
    await clock.advance(0.1)
    peer.reading.set()
    await task
    assert peer.body.startswith(b"a")
    assert peer.body.endswith(b"last")
    assert peer.body.count(COMMENT) <= 1


@pytest.mark.parametrize("reads", [True, False])
async def test_abort_is_called_when_the_client_leaves_during_silence(
    connection: Connect, reads: bool, clock: VirtualClock
) -> None:
    # The blocked message may be a comment.
    source, peer = Source(b"a"), connection()
    task = await respond(source, peer, 0.01)
    await source.waiting.wait()
    if reads:
        await wait_until(lambda: COMMENT in peer.body)
    else:
        peer.reading.clear()
        await peer.blocked.wait()
    peer.left.set()
    await task
    assert source.aborts >= 1
    assert source.closed
