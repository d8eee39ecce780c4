"""RKLLM: from the runtime's callback to a job's JSON, and to the bytes that a client reads.

The runtime is the stand-in of `tests/fake_rkllm`, ABI 1.3, at the full speed that its callback
allows or at 20 tokens/s, always on the calling thread. The first row is its speed with a callback
that only counts. The peer is the design of the best RKLLM servers: plain ctypes, a `queue.Queue`
per request, one lock (`plain_rkllm`, `queues`), with Flask and gunicorn threads
(`processes/flask_server`). It uses the same library and is measured in turns with ours. A context
has at most 16,384 tokens, so a burst is several long answers.

Each text is compared with the produced text, because a server that loses tokens has no valid speed.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.engines import (
    ISOLATIONS,
    TEXT_STAMP,
    both,
    consumer_latencies_ms,
    job_seconds,
    rkllm,
)
from benchmarks.machine import MOODS
from benchmarks.measure import (
    Pairs,
    Table,
    latencies_in_turns,
    max_budget,
    min_budget,
    take_turns,
)
from benchmarks.options import Options, print_progress
from benchmarks.plain_rkllm import PlainRkllm, RkllmSource
from benchmarks.queues import Source, tokens
from benchmarks.scripts import (
    RKLLM_CONTEXT,
    burst_text,
    write_rkllm_burst,
    write_rkllm_stamps,
)
from benchmarks.servers import run_server
from benchmarks.streams import (
    COALESCED,
    FIRST_PACE,
    LIMIT_S,
    PACE,
    PROMPT,
    burst_rate,
    first_tokens,
    settings,
    steady,
)
from tests.fake_rkllm import build

NAME = "rkllm"
# The median and the 95th percentile of a lone token's latency, as ratios to the peer's: its threads
# share a process, and so do ours in thread isolation (docs/decisions/0034).
LATENCY_BUDGETS = {
    "process": (max_budget(1.5, "ratio"), max_budget(1.5, "ratio")),
    "thread": (max_budget(1.2, "ratio"), max_budget(1.2, "ratio")),
}
# Tokens of one answer in a burst: almost the whole context.
_TOKENS = 16_000
# One user message, for which the runtime applies its template; only streams have deltas.
_JOB = {"messages": [{"role": "user", "content": "a prompt"}], "stream": True}
_NOTES = (
    f"A burst is an answer of {_TOKENS:,} tokens, several times in a row, measured from the "
    "request to the last byte, including the first token.",
    COALESCED,
    "A bare hop is not our server but the minimum with the runtime in its own process: the bytes "
    "of a token are sent to a socket and from there to the client, without building an answer.",
)


def run(options: Options) -> list[Table]:
    """Measure in this process, then servers: bursts, first tokens, a steady pace."""
    inside = Table(title=f"{NAME}, in process", ours="ours", peer="a queue per request")
    served = Table(title=NAME, ours="our server", peer="Flask, a queue per request")
    served.notes.extend(_NOTES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build("1.3", folder)
        _bare(inside, library, write_rkllm_burst(folder), options)
        uvloop.run(_inside(inside, library, folder, options))
        _served(served, library, folder, options)
    return [inside, served]


def _bare(table: Table, library: Path, script: Path, options: Options) -> None:
    """Measure the stand-in with a callback that only counts, the upper limit for Python."""
    print_progress(f"{NAME}: bare stand-in")
    token_count = options.size(500_000, 50_000)
    count = 0

    def on_result(result: Any, number: int | None, state: int) -> int:
        nonlocal count
        count += 1
        return 0

    bare = PlainRkllm(library, script, on_result)
    rates = []
    for _ in range(options.pairs):
        count = 0
        started = time.perf_counter()
        bare.run(PROMPT, token_count)
        rates.append(token_count / (time.perf_counter() - started))
        # The last call reports the end.
        assert count == token_count + 1, "a token was lost"
    bare.close()
    table.add_single("bare stand-in, a callback that only counts", "tokens/s", rates)


# ---- in this process ----


async def _inside(table: Table, library: Path, folder: Path, options: Options) -> None:
    async with asyncio.timeout(LIMIT_S):
        burst = write_rkllm_burst(folder)
        peer = RkllmSource(library, burst)
        jobs, of_peer = options.size(10, 2), options.size(3, 1)
        async with both(rkllm(library, burst)) as engines:
            for isolation, engine in zip(ISOLATIONS, engines, strict=True):
                print_progress(f"{NAME}: jobs, {isolation} isolation, {options.pairs} pairs")
                pairs = await take_turns(
                    options.pairs,
                    job_seconds(engine, _JOB, _TOKENS, jobs),
                    _queued_job_seconds(peer, of_peer),
                )
                name = f"one job to its JSON, {isolation} isolation"
                table.compare(name, "tokens/s", _each(pairs, lambda seconds: _TOKENS / seconds))
                table.compare(name, "µs/token", _each(pairs, lambda s: s * 1e6 / _TOKENS))
        peer.close()
        stamps = write_rkllm_stamps(folder, PACE)
        peer = RkllmSource(library, stamps)
        paced = options.size(40, 10)
        async with both(rkllm(library, stamps)) as engines:
            for isolation, engine in zip(ISOLATIONS, engines, strict=True):
                for mood, cores in MOODS.items():
                    what = f"{PACE:g} tokens/s, {isolation} isolation, {mood}"
                    print_progress(f"{NAME}: {what}, {options.pairs} pairs")
                    with cores():
                        p50, p95 = await latencies_in_turns(
                            options.pairs,
                            consumer_latencies_ms(engine, paced),
                            _queued_latencies_ms(peer, paced),
                        )
                    table.compare(f"callback to consumer at {what}, p50", "ms", p50)
                    table.compare(f"callback to consumer at {what}, p95", "ms", p95)
        peer.close()


def _each(pairs: Pairs, of: Callable[[float], float]) -> Pairs:
    return Pairs([*map(of, pairs.ours)], [*map(of, pairs.peer)])


def _queued_job_seconds(source: Source, jobs: int) -> Callable[[], Awaitable[float]]:
    """Return a measurement of the peer: deltas and text from its queue as one JSON value."""
    expected = burst_text(_TOKENS)

    async def measure() -> float:
        elapsed = 0.0
        for _ in range(jobs):
            started = time.perf_counter()
            deltas = list(tokens(source, PROMPT, _TOKENS))
            text = "".join(deltas)
            json.dumps({"choices": [{"text": text, "deltas": deltas, "tokens": deltas}]})
            elapsed += time.perf_counter() - started
            assert text == expected, "a token was lost"
        return elapsed / jobs

    return measure


def _queued_latencies_ms(source: Source, token_count: int) -> Callable[[], Awaitable[list[float]]]:
    async def measure() -> list[float]:
        came = [(time.monotonic_ns(), text) for text in tokens(source, PROMPT, token_count)]
        results = [
            (now - int(stamp)) / 1e6 for now, text in came for stamp in TEXT_STAMP.findall(text)
        ]
        assert len(results) == token_count, "a token was lost"
        return results

    return measure


# ---- servers ----


def _served(table: Table, library: Path, folder: Path, options: Options) -> None:
    def ours(model: Path, name: str, isolation: str = "process") -> dict[str, str]:
        return settings(
            "rkllm",
            model,
            folder,
            name,
            RKLLM_LIB_PATH=str(library),
            CONTEXT_LENGTH=str(RKLLM_CONTEXT),
            ENGINE_ISOLATION=isolation,
        )

    def peer(model: Path) -> list[str]:
        return [str(model), str(library)]

    burst = write_rkllm_burst(folder)
    with (
        run_server("emulator", env=ours(burst, "process")) as process,
        run_server("emulator", env=ours(burst, "thread", "thread")) as thread,
        run_server("emulator", ["--event-per-token"], ours(burst, "each")) as per_token,
        run_server("flask_server", peer(burst)) as flask,
    ):
        uvloop.run(_bursts(table, options, (process, thread), per_token, flask))
    stamps = write_rkllm_stamps(folder, FIRST_PACE)
    with (
        run_server("emulator", env=ours(stamps, stamps.stem)) as process,
        run_server("flask_server", peer(stamps)) as flask,
    ):
        uvloop.run(first_tokens(table, options, process, flask))
    stamps = write_rkllm_stamps(folder, PACE)
    for isolation in ISOLATIONS:
        with (
            run_server("emulator", env=ours(stamps, stamps.stem, isolation)) as port,
            run_server("flask_server", peer(stamps)) as flask,
        ):
            what = f"{isolation} isolation, "
            p50, p95 = LATENCY_BUDGETS[isolation]
            uvloop.run(steady(table, options, port, flask, what=what, p50=p50, p95=p95))
    with (
        run_server("bare_hop", peer(stamps)) as port,
        run_server("flask_server", peer(stamps)) as flask,
    ):
        uvloop.run(steady(table, options, port, flask, what="a bare hop, "))


async def _bursts(
    table: Table, options: Options, ours: tuple[int, int], per_token: int, peer: int
) -> None:
    asks, of_peer = options.size(20, 2), options.size(3, 1)
    async with asyncio.timeout(LIMIT_S):
        for isolation, port in zip(ISOLATIONS, ours, strict=True):
            print_progress(f"{NAME}: burst, {isolation} isolation, {options.pairs} pairs")
            pairs = await take_turns(
                options.pairs,
                burst_rate(port, _TOKENS, asks=asks),
                burst_rate(peer, _TOKENS, asks=of_peer),
            )
            budget = min_budget(200_000) if isolation == "process" else None
            name = f"burst, 1 stream, coalesced, {isolation} isolation"
            table.compare(name, "tokens/s", pairs, budget)
        print_progress(f"{NAME}: burst, one event per token, {options.pairs} pairs")
        pairs = await take_turns(
            options.pairs,
            burst_rate(per_token, _TOKENS, asks=options.size(10, 1), each_its_own=True),
            burst_rate(peer, _TOKENS, asks=of_peer, each_its_own=True),
        )
        table.compare("burst, 1 stream, one event per token", "events/s", pairs, min_budget(35_000))
