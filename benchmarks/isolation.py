"""The cost of the engine's own process: process isolation against thread isolation.

Engine, script and consumer are the same, on one event loop; only the location of the backend
differs. Bursts measure throughput; first tokens and a steady 20 tokens/s measure latency. A stamped
token carries the time at which it was produced, on the clock that all processes share, and the
consumer compares it with the time of receipt. Thread isolation avoids the socket but shares the
interpreter lock with the producer, and does not survive a crash, which is the purpose of process
isolation.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from benchmarks.engines import both, consumer_latencies_ms, request, scripted
from benchmarks.machine import MOODS
from benchmarks.measure import Table, latencies_in_turns, max_budget, percentile, take_turns
from benchmarks.options import Options, print_progress
from benchmarks.scripts import burst_text, write_burst, write_stamps
from benchmarks.stamping import installed
from engine import Engine

NAME = "isolation"
_LIMIT_S = 600.0
_STREAMS = 4
_PACE = 20.0


def run(options: Options) -> list[Table]:
    """Measure bursts, first tokens, and the latency of tokens at a steady pace."""
    with tempfile.TemporaryDirectory() as name, installed():
        folder = Path(name)
        scripts = write_burst(folder), write_stamps(folder, _PACE)
        return [uvloop.run(_run(options, *scripts))]


async def _run(options: Options, burst: Path, stamps: Path) -> Table:
    table = Table(title=NAME, ours="process", peer="thread")
    tokens = options.size(400_000, 40_000)
    async with asyncio.timeout(_LIMIT_S), AsyncExitStack() as stack:
        process, thread = await stack.enter_async_context(both(scripted(burst)))
        for streams in (1, _STREAMS):
            each = tokens // streams
            name = f"burst, {streams} stream{'s' if streams > 1 else ''} of {each:,} tokens"
            print_progress(f"{NAME}: {name}")
            pairs = await take_turns(
                options.pairs, _burst(process, each, streams), _burst(thread, each, streams)
            )
            table.compare(name, "tokens/s", pairs)
        print_progress(f"{NAME}: first token")
        asks = options.size(100, 10)
        table.compare(
            "first token",
            "ms",
            await take_turns(
                options.pairs, _first_token(process, asks), _first_token(thread, asks)
            ),
        )
        process, thread = await stack.enter_async_context(both(scripted(stamps)))
        for mood, cores in MOODS.items():
            print_progress(f"{NAME}: {_PACE:g} tokens/s, {mood}, {options.pairs} pairs")
            with cores():
                await _steady(table, process, thread, options, mood)
    return table


async def _steady(
    table: Table, process: Engine, thread: Engine, options: Options, mood: str
) -> None:
    tokens = options.size(40, 10)
    p50, p95 = await latencies_in_turns(
        options.pairs,
        consumer_latencies_ms(process, tokens),
        consumer_latencies_ms(thread, tokens),
    )
    name = f"callback to consumer at {_PACE:g} tokens/s, {mood}"
    table.compare(f"{name}, p50", "ms", p50, max_budget(0.3))
    table.compare(f"{name}, p95", "ms", p95)


def _burst(engine: Engine, tokens: int, streams: int) -> Callable[[], Awaitable[float]]:
    async def text() -> str:
        async with await engine.generate(request(tokens)) as stream:
            texts = [delta.text async for batch in stream for delta in batch]
            await stream.wait_ended()
        return "".join(texts)

    async def measure() -> float:
        started = time.perf_counter()
        texts = await asyncio.gather(*(text() for _ in range(streams)))
        elapsed = time.perf_counter() - started
        assert set(texts) == {burst_text(tokens)}, "a token was lost"
        return tokens * streams / elapsed

    return measure


def _first_token(engine: Engine, asks: int) -> Callable[[], Awaitable[float]]:
    async def measure() -> float:
        waits = []
        for _ in range(asks):
            started = time.perf_counter()
            async with await engine.generate(request(1)) as stream:
                await anext(stream)
                waits.append(time.perf_counter() - started)
                await stream.wait_ended()
        return percentile(waits, 50) * 1000

    return measure
