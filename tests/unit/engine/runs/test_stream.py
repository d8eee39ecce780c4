"""A stream without a host: its deltas, its calls of the host, and its timeouts."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

import engine.runs.stream
from engine.errors import (
    BackendFailed,
    ConsumerTooSlow,
    EngineError,
    EngineStalled,
    GenerationCancelled,
    GenerationTimeout,
)
from engine.hooks import EngineEvent, FirstToken, Hooks, RequestEnded
from engine.output import Delta, Finish, FinishReason, Timings, Usage
from engine.request import GenerationRequest
from engine.runs.stream import RunStart, TokenStream
from engine.timeouts import Timeouts
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks

FINISH = Finish(
    reason=FinishReason.STOP, usage=Usage(4, 11, 3), timings=Timings(prefill_ms=3), stop_reason="x"
)


@dataclass
class StreamHarness:
    """Acts as the host of one stream, and records the stream's calls."""

    aborted: list[int] = field(default_factory=list)
    killed: list[EngineError] = field(default_factory=list)
    overs: int = 0
    events: list[EngineEvent] = field(default_factory=list)
    killing: asyncio.Event = field(default_factory=asyncio.Event)

    def abort(self, run_id: int) -> None:
        self.aborted.append(run_id)

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        self.killed.append(error)
        self.killing.set()

    def on_end(self, stream: TokenStream) -> None:
        self.overs += 1

    def open(
        self,
        *,
        threaded: bool = False,
        abort_in_prefill: bool = True,
        deadline_s: float = 100,
        timeout_s: float | None = None,
        buffered: bool = False,
        **clocks: float,
    ) -> TokenStream:
        request = GenerationRequest(prompt="x", request_id="r", timeout_s=timeout_s)
        run = RunStart(
            run_id=7,
            request=request,
            deadline=asyncio.get_running_loop().time() + deadline_s,
            queued_s=0.25,
            warnings=("seed was ignored",),
            abort_in_prefill=abort_in_prefill,
            buffered=buffered,
        )
        hooks = Hooks([self.events.append])
        return TokenStream(
            run, self, Timeouts(**clocks), hooks, threaded=threaded, on_end=self.on_end
        )


@pytest.fixture
async def harness() -> StreamHarness:
    return StreamHarness()


def deltas(*texts: str) -> list[Delta]:
    return [Delta(text) for text in texts]


async def read(stream: TokenStream) -> list[list[str]]:
    async with asyncio.timeout(30):
        return [[delta.text for delta in batch] async for batch in stream]


async def test_stream_yields_the_fed_deltas_and_then_has_a_result(harness: StreamHarness) -> None:
    stream = harness.open()
    stream.feed(deltas("a", "b"))
    assert [delta.text for delta in await anext(stream)] == ["a", "b"]
    stream.feed(deltas("c"))
    stream.end(FINISH, None)
    assert await read(stream) == [["c"]]
    assert stream.result is not None
    assert (stream.result.usage, stream.result.stop_reason) == (Usage(4, 11, 3), "x")
    assert stream.warnings == ("seed was ignored",)
    assert harness.overs == 1


async def test_consumer_that_waits_is_woken(harness: StreamHarness) -> None:
    # R29
    stream = harness.open()
    reader = asyncio.create_task(read(stream))
    await run_ready_tasks()
    stream.feed(deltas("a"))
    await run_ready_tasks()
    stream.feed(deltas("b"))
    await run_ready_tasks()
    stream.end(FINISH, None)
    assert await reader == [["a"], ["b"]]


async def test_delta_without_text_is_not_yielded(harness: StreamHarness) -> None:
    stream = harness.open()
    stream.feed(deltas("", ""))
    stream.feed(deltas("a", "", "b"))
    stream.end(FINISH, None)
    assert await read(stream) == [["a", "b"]]


async def test_failure_is_raised_after_the_deltas_before_it(harness: StreamHarness) -> None:
    # R30
    stream = harness.open()
    stream.feed(deltas("a"))
    stream.end(None, BackendFailed("broken"))
    assert [delta.text for delta in await anext(stream)] == ["a"]
    with pytest.raises(BackendFailed, match="broken"):
        await anext(stream)
    assert stream.result is None


async def test_abort_calls_the_host_once_and_drops_later_deltas(harness: StreamHarness) -> None:
    # R31
    stream = harness.open()
    stream.feed(deltas("unread"))
    stream.abort()
    stream.abort()
    stream.feed(deltas("late"))
    assert harness.aborted == [7]
    with pytest.raises(GenerationCancelled):
        await anext(stream)
    assert harness.overs == 0
    stream.end(FINISH, None)
    assert (harness.overs, stream.result) == (1, None)
    with pytest.raises(GenerationCancelled):
        await anext(stream)


async def test_abort_wakes_a_waiting_consumer_with_its_reason(harness: StreamHarness) -> None:
    stream = harness.open()
    reader = asyncio.create_task(read(stream))
    await run_ready_tasks()
    stream.abort(GenerationTimeout("too late"))
    with pytest.raises(GenerationTimeout, match="too late"):
        await reader
    stream.end(None, None)


async def test_leaving_the_block_aborts(harness: StreamHarness) -> None:
    # R31
    async with harness.open() as stream:
        stream.feed(deltas("a"))
    assert harness.aborted == [7]
    stream.end(None, None)
    async with harness.open() as finished:
        finished.end(FINISH, None)
    assert harness.aborted == [7]


async def test_wait_ended_returns_for_all_waiters_after_one_is_cancelled(
    harness: StreamHarness,
) -> None:
    stream = harness.open()
    waiting = [asyncio.create_task(stream.wait_ended()) for _ in range(3)]
    await run_ready_tasks()
    waiting[0].cancel()
    await run_ready_tasks()
    assert [each.done() for each in waiting] == [True, False, False]
    stream.end(FINISH, None)
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting[1:])


async def test_only_the_first_end_counts(harness: StreamHarness) -> None:
    stream = harness.open()
    stream.end(FINISH, None)
    stream.end(None, BackendFailed("again"))
    assert harness.overs == 1
    assert stream.error is None
    async with asyncio.timeout(30):
        await stream.wait_ended()


async def test_feeding_thread_wakes_the_loop(harness: StreamHarness) -> None:
    stream = harness.open(threaded=True)
    loop = asyncio.get_running_loop()

    def produce() -> None:
        for number in range(500):
            stream.feed(deltas(str(number)))
        loop.call_soon_threadsafe(stream.end, FINISH, None)

    reading = asyncio.create_task(read(stream))
    await asyncio.to_thread(produce)
    assert [text for batch in await reading for text in batch] == list(map(str, range(500)))


@pytest.fixture
def small_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.runs.stream, "MAX_PENDING_CHARS", 10)


@pytest.mark.usefixtures("small_stream")
async def test_slow_reader_aborts_only_its_own_request(harness: StreamHarness) -> None:
    stream = harness.open()
    stream.feed(deltas("12345", "67890"))
    stream.feed(deltas("!"))
    # The abort comes in the loop's next iteration, because a thread may have fed the text.
    await run_ready_tasks()
    with pytest.raises(ConsumerTooSlow, match="more than 10 characters"):
        await read(stream)
    assert harness.aborted == [7]
    stream.end(FINISH, None)
    assert stream.result is None


@pytest.mark.usefixtures("small_stream")
async def test_fast_reader_may_read_any_amount(harness: StreamHarness) -> None:
    stream = harness.open()
    for _ in range(10):
        stream.feed(deltas("1234567890"))
        assert [delta.text for delta in await anext(stream)] == ["1234567890"]
    stream.end(FINISH, None)
    assert stream.result is not None


@pytest.mark.usefixtures("small_stream")
@pytest.mark.parametrize("threaded", [False, True])
async def test_answer_with_dropped_text_ends_with_an_error(
    harness: StreamHarness, threaded: bool
) -> None:
    # The run may end in the same loop iteration as the text that exceeds the limit.
    stream = harness.open(threaded=threaded)
    stream.feed(deltas("12345678901"))
    stream.end(FINISH, None)
    with pytest.raises(ConsumerTooSlow):
        await read(stream)
    assert stream.result is None
    assert harness.overs == 1


async def test_prefill_timeout_aborts_the_run(harness: StreamHarness, clock: VirtualClock) -> None:
    stream = harness.open(prefill_timeout_s=5)
    with pytest.raises(EngineStalled, match="no first token came within 5 s"):
        await read(stream)
    assert clock.elapsed_s == pytest.approx(5)
    assert harness.aborted == [7]
    stream.end(None, None)


async def test_stall_timeout_counts_from_the_last_token(
    harness: StreamHarness, clock: VirtualClock
) -> None:
    stream = harness.open(prefill_timeout_s=60, stall_timeout_s=5)
    await clock.advance(1)
    stream.feed(deltas("a"))
    with pytest.raises(EngineStalled, match="no token came for 5 s"):
        await read(stream)
    assert clock.elapsed_s == pytest.approx(1 + 5)
    stream.end(None, None)


async def test_tokens_restart_the_stall_timeout(
    harness: StreamHarness, clock: VirtualClock
) -> None:
    stream = harness.open(stall_timeout_s=0.2)
    for _ in range(8):
        # A token without text counts: text may be held back as a possible stop string for long.
        stream.feed(deltas(""))
        await clock.advance(0.05)
    assert harness.aborted == []
    stream.end(FINISH, None)


async def test_deadline_of_the_request_precedes_the_other_timeouts(
    harness: StreamHarness,
    clock: VirtualClock,
) -> None:
    stream = harness.open(deadline_s=9, timeout_s=12, stall_timeout_s=60)
    stream.feed(deltas("a"))
    with pytest.raises(GenerationTimeout, match="took longer than 12 s"):
        await read(stream)
    assert clock.elapsed_s == pytest.approx(9)
    stream.end(None, None)


async def test_run_that_ignores_an_abort_is_reported_as_stuck(
    harness: StreamHarness, clock: VirtualClock
) -> None:
    stream = harness.open(abort_grace_s=2)
    stream.abort()
    await harness.killing.wait()
    assert clock.elapsed_s == pytest.approx(2)
    (error,) = harness.killed
    assert type(error) is EngineStalled
    assert "did not stop within 2 s" in error.message
    stream.end(None, error)
    assert type(stream.error) is GenerationCancelled


async def test_prefill_that_cannot_be_interrupted_gets_its_full_time(
    harness: StreamHarness,
    clock: VirtualClock,
) -> None:
    # A cancelled long prompt must not cost a model reload.
    loop = asyncio.get_running_loop()
    started = loop.time()
    stream = harness.open(abort_in_prefill=False, prefill_timeout_s=0.2, abort_grace_s=0.01)
    stream.abort()
    async with asyncio.timeout(10):
        await harness.killing.wait()
    assert loop.time() - started == pytest.approx(0.2 + 0.01)
    stream.end(None, None)


async def test_no_timeout_expires_after_the_end(
    harness: StreamHarness, clock: VirtualClock
) -> None:
    stream = harness.open(prefill_timeout_s=0.01, abort_grace_s=0.01)
    stream.end(FINISH, None)
    await clock.advance(0.05)
    assert (harness.aborted, harness.killed) == ([], [])


async def test_timings_are_in_milliseconds_and_add_up(
    harness: StreamHarness, clock: VirtualClock
) -> None:
    stream = harness.open()
    await clock.advance(0.02)
    stream.feed(deltas("a"))
    await clock.advance(0.02)
    stream.end(FINISH, None)
    assert stream.result is not None
    timings = stream.result.timings
    assert timings.queue_ms == 250
    assert timings.prefill_ms == 3
    assert timings.first_token_ms == pytest.approx(20)
    assert timings.generate_ms == pytest.approx(20)
    total = timings.queue_ms + timings.first_token_ms + timings.generate_ms
    assert timings.total_ms == pytest.approx(total, abs=0.01)
    assert (timings.reused_tokens, timings.prefilled_tokens) == (3, 1)
    # Eleven tokens, the first of which belongs to prefill.
    assert timings.tokens_per_second == pytest.approx(10_000 / timings.generate_ms, rel=0.01)


async def test_finish_from_the_host_has_first_token_time_and_reused_tokens(
    harness: StreamHarness,
    clock: VirtualClock,
) -> None:
    stream = harness.open(buffered=True)
    await clock.advance(0.02)
    stream.feed(deltas("a"))
    timings = Timings(prefill_ms=3, first_token_ms=4)
    finish = Finish(reason=FinishReason.STOP, usage=Usage(9, 2, 5), timings=timings)
    stream.end(Finish.from_wire(json.loads(json.dumps(finish.to_wire()))), None)
    assert stream.result is not None
    timings = stream.result.timings
    assert timings.first_token_ms == pytest.approx(4)
    assert (timings.reused_tokens, timings.prefilled_tokens) == (5, 4)


async def test_answer_without_a_token_has_no_rate(harness: StreamHarness) -> None:
    stream = harness.open()
    stream.end(Finish(reason=FinishReason.STOP, usage=Usage(4, 0)), None)
    assert stream.result is not None
    assert stream.result.timings.tokens_per_second == 0
    assert [type(event) for event in harness.events] == [RequestEnded]


@pytest.mark.parametrize(
    ("end", "aborted"), [((FINISH, None), False), ((None, BackendFailed("x")), False)]
)
async def test_hook_gets_the_end_of_a_request(
    harness: StreamHarness, end: tuple[Any, Any], aborted: bool
) -> None:
    stream = harness.open()
    stream.feed(deltas("a"))
    stream.end(*end)
    first, ended = harness.events
    assert isinstance(first, FirstToken)
    assert isinstance(ended, RequestEnded)
    assert (ended.request_id, ended.finish, ended.error, ended.aborted) == (
        "r",
        stream.result,
        end[1],
        aborted,
    )
    assert 0 <= first.after_s <= ended.duration_s


async def test_hook_gets_the_end_of_an_aborted_request(harness: StreamHarness) -> None:
    stream = harness.open()
    stream.abort()
    stream.end(FINISH, None)
    (ended,) = harness.events
    assert isinstance(ended, RequestEnded)
    assert ended.aborted
    assert ended.finish is None
    assert type(ended.error) is GenerationCancelled


@pytest.mark.parametrize("threaded", [False, True])
async def test_hook_gets_the_first_token_once(harness: StreamHarness, threaded: bool) -> None:
    stream = harness.open(threaded=threaded)
    stream.feed(deltas("a"))
    await run_ready_tasks()
    (first,) = harness.events
    assert isinstance(first, FirstToken)
    assert first.after_s >= 0
    stream.feed(deltas("b"))
    await run_ready_tasks()
    assert harness.events == [first]


async def test_first_token_of_a_buffered_run_has_the_hosts_time(
    harness: StreamHarness,
    clock: VirtualClock,
) -> None:
    stream = harness.open(buffered=True)
    await clock.advance(0.05)
    stream.feed(deltas("a"))
    assert harness.events == []
    stream.end(FINISH._replace(timings=Timings(first_token_ms=1.5)), None)
    first, _ = harness.events
    assert isinstance(first, FirstToken)
    assert first.after_s == pytest.approx(0.0015)
    assert stream.result is not None
    assert stream.result.timings.first_token_ms == pytest.approx(1.5)
    assert stream.result.timings.generate_ms == pytest.approx(50, abs=2)


async def test_hook_gets_no_first_token_after_the_end(harness: StreamHarness) -> None:
    stream = harness.open(threaded=True)
    stream.feed(deltas("a"))
    # Before the loop has processed the token, as when a host has failed for good.
    stream.end(None, EngineStalled("gone"))
    await run_ready_tasks()
    assert [type(event) for event in harness.events] == [FirstToken, RequestEnded]


async def test_hook_gets_token_count_and_decode_time(
    harness: StreamHarness, clock: VirtualClock
) -> None:
    complete, cut, silent = harness.open(), harness.open(), harness.open()
    for stream in (complete, cut):
        stream.feed(deltas("a", "b"))
        await clock.advance(0.01)
        stream.feed(deltas("c"))
    complete.end(FINISH, None)
    cut.abort()
    cut.end(FINISH, None)
    silent.end(None, BackendFailed("broken"))
    ends = [event for event in harness.events if isinstance(event, RequestEnded)]
    # The engine's count, if there is one: the end of an aborted run overtakes its deltas.
    assert [end.tokens for end in ends] == [11, 11, 0]
    assert [end.decode_s for end in ends] == pytest.approx([0.01, 0.01, 0])
    assert {end.priority for end in ends} == {complete.request.priority}


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize(
    "how", ["read", "unread", "failed", "failed, read", "aborted", "cut, read"]
)
async def test_ended_stream_leaves_no_reference_cycle(
    harness: StreamHarness, threaded: bool, how: str
) -> None:
    # A reference cycle would stay in a server that freezes its objects, one for each job.
    gc.disable()
    try:
        stream = harness.open(threaded=threaded)
        references = weakref.ref(stream)
        stream.feed(deltas("a"))
        if how == "aborted":
            stream.abort()
        elif how == "cut, read":
            stream.abort(BackendFailed("broken"))
        failed = BackendFailed("broken") if how.startswith("failed") else None
        stream.end(None if failed else FINISH, failed)
        if how == "read":
            assert await read(stream) == [["a"]]
        elif how.endswith(", read"):
            # Not `pytest.raises`, which keeps the exception.
            with suppress(BackendFailed):
                await read(stream)
        del stream
        # Run the callbacks that the producing thread has scheduled.
        await run_ready_tasks()
        assert references() is None
    finally:
        gc.enable()
