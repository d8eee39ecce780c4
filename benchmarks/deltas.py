"""Aggregation of a job: the server's time per delta, and the memory of an answer.

No engine is used. "Aggregation" makes one JSON value from received deltas: `Running.batches` with
its `_keep`, then `answer` and `encode`. "The whole chain" starts at the callback: UTF-8 decoding,
stop matching, counting, the channel, the stream with its timers, and then the same aggregation.
Producer and consumer share one event loop, so that threads hide no cost. Both are measured with one
delta per wake-up, as at the pace of a model, and with 64, as on a busy server. There is no peer,
because other servers do not have this stage separately.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence
from time import perf_counter
from typing import cast

from benchmarks.measure import Table, max_budget
from benchmarks.options import Options, print_progress
from engine import (
    Delta,
    Finish,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    Timeouts,
    TokenStream,
    Usage,
)
from engine.errors import EngineError
from engine.generation import Generation
from engine.hooks import Hooks
from engine.stream import RunStart
from handler.generation.active_generation import ActiveGeneration
from handler.input.request import TextRequest
from handler.response import encode_answer

NAME = "deltas"
_STOPS = ("\n\nUser:", "<|im_end|>", "###", "</s>")
_LIMIT_S = 120.0


def run(options: Options) -> list[Table]:
    """Measure the time per delta and the memory at two sizes."""
    return [asyncio.run(_run(options))]


async def _run(options: Options) -> Table:
    table = Table(title=NAME, ours="ours")
    deltas = options.size(50_000, 5_000)
    async with asyncio.timeout(_LIMIT_S * options.pairs):
        for size in (1, 64):
            at_a_time = f"{size} delta{'s' if size > 1 else ''} at a time"
            print_progress(f"{NAME}: {at_a_time}")
            aggregation: list[float] = []
            chain: list[float] = []
            matched: list[float] = []
            for turn in range(options.pairs + 1):
                figures = (
                    await _aggregate_us(deltas, size),
                    await _chain_us(deltas, size, ()),
                    await _chain_us(deltas, size, _STOPS),
                )
                if turn:
                    for values, figure in zip((aggregation, chain, matched), figures, strict=True):
                        values.append(figure)
            table.add_single(f"aggregation, {at_a_time}", "µs/delta", aggregation, max_budget(3.0))
            table.add_single(f"the whole chain, {at_a_time}", "µs/delta", chain)
            table.add_single(f"the whole chain with 4 stops, {at_a_time}", "µs/delta", matched)
        small, large = deltas // 5, deltas
        print_progress(f"{NAME}: memory at {small:,} and {large:,} deltas")
        light, heavy = await _bytes_per_delta(small), await _bytes_per_delta(large)
    table.add_single(f"memory at the peak, {small:,} deltas", "bytes/delta", [light])
    table.add_single(f"memory at the peak, {large:,} deltas", "bytes/delta", [heavy])
    table.add_single(
        "the latter over the former (1 is linear)", "x", [heavy / light], max_budget(1.1)
    )
    return table


class _Arrived:
    """A stream for the aggregation whose deltas have all been received."""

    warnings: tuple[str, ...] = ()

    def __init__(self, batches: Sequence[list[Delta]], finish: Finish) -> None:
        self._batches = iter(batches)
        self.result = finish

    async def __anext__(self) -> list[Delta]:
        for batch in self._batches:
            return batch
        raise StopAsyncIteration

    def abort(self) -> None:
        """Do nothing."""


class _NoHost:
    """The host interface that a stream needs; it is never used here."""

    def abort(self, run_id: int) -> None:
        """Do nothing."""

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        """Do nothing."""


def _texts(count: int) -> list[str]:
    return [f" {number % 1000:03d}" for number in range(count)]


def _request(sampling: SamplingParams | None = None) -> TextRequest:
    generation = GenerationRequest(prompt="prompt", sampling=sampling or SamplingParams())
    return TextRequest(generation=generation, streaming=True)


def _finish(count: int) -> Finish:
    return Finish(reason=FinishReason.STOP, usage=Usage(1, count))


async def _aggregate_us(count: int, size: int) -> float:
    deltas = [Delta(text) for text in _texts(count)]
    batches = [deltas[start : start + size] for start in range(0, count, size)]
    started = perf_counter()
    output = await _collect(cast("TokenStream", _Arrived(batches, _finish(count))))
    elapsed = perf_counter() - started
    _check(output, count)
    return elapsed / count * 1e6


async def _collect(stream: TokenStream) -> dict[str, object]:
    first: list[Delta] = await anext(stream, [])
    running = ActiveGeneration(_request(), stream, first, "bench", None)
    async for _ in running.batches():
        pass
    return encode_answer(await running.build_answer())


async def _chain_us(count: int, size: int, stops: tuple[str, ...]) -> float:
    pieces = [text.encode() for text in _texts(count)]
    sampling = SamplingParams(stop=stops)
    stream = _stream(sampling)
    generation = Generation(sampling, lambda delta: stream.feed((delta,)))

    async def produce() -> None:
        for start in range(0, count, size):
            for number, piece in enumerate(pieces[start : start + size], start):
                generation.on_piece(piece, number, None)
            await asyncio.sleep(0)
        stream.end(_finish(count), None)

    started = perf_counter()
    producer = asyncio.create_task(produce())
    output = await _collect(stream)
    elapsed = perf_counter() - started
    await producer
    _check(output, count)
    return elapsed / count * 1e6


def _stream(sampling: SamplingParams) -> TokenStream:
    loop = asyncio.get_running_loop()
    request = GenerationRequest(prompt="prompt", sampling=sampling)
    run = RunStart(run_id=1, request=request, deadline=loop.time() + _LIMIT_S)
    return TokenStream(
        run, _NoHost(), Timeouts(), Hooks(), threaded=False, on_end=lambda stream: None
    )


def _check(output: dict[str, object], count: int) -> None:
    choices = cast("list[dict[str, object]]", output["choices"])
    assert choices[0]["text"] == "".join(_texts(count)), "a delta was lost"


async def _bytes_per_delta(count: int) -> float:
    """Return the peak memory of the chain per delta, including the JSON."""
    pieces = (b" %03d" % (number % 1000) for number in range(count))
    stream = _stream(SamplingParams())
    generation = Generation(SamplingParams(), lambda delta: stream.feed((delta,)))

    async def produce() -> None:
        for number, piece in enumerate(pieces):
            generation.on_piece(piece, number, None)
            if number % 64 == 0:
                await asyncio.sleep(0)
        stream.end(_finish(count), None)

    tracemalloc.start()
    try:
        producer = asyncio.create_task(produce())
        output = await _collect(stream)
        await producer
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert output
    return peak / count
