"""The overhead of a job: `JobHandler.run` against the bare backend.

Ours runs a job from its input to its JSON: parsing and checks, admission, a thread or a process,
streams and timers, aggregation, and size limits. The peer calls `run` of the same backend with the
same prompt and joins the bytes, which is the minimum. The answer is scripted and almost free, so
the difference is visible. Jobs run one after the other, so the time of one is its latency.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks.engines import ISOLATIONS, both, job_seconds, scripted
from benchmarks.measure import Pairs, Sample, Table, take_turns
from benchmarks.options import Options, say
from benchmarks.scripts import write_burst
from engine import Engine, SamplingParams
from engine.backends.scripted import ScriptedBackend
from engine.output import TokenLogprob

NAME = "job_overhead"
_SHORT, _LONG = 8, 256
_LIMIT_S = 300.0


def run(options: Options) -> list[Table]:
    """Measure jobs of two lengths under both isolations."""
    with tempfile.TemporaryDirectory() as folder:
        return [uvloop.run(_run(options, write_burst(Path(folder))))]


async def _run(options: Options, script: Path) -> Table:
    table = Table(title=NAME, ours="JobHandler.run", peer="bare backend.run")
    jobs = options.size(200, 20)
    backend = ScriptedBackend(str(script))
    backend.load()
    async with asyncio.timeout(_LIMIT_S), both(scripted(script)) as engines:
        for isolation, engine in zip(ISOLATIONS, engines, strict=True):
            found: dict[int, Pairs] = {}
            for tokens in (_SHORT, _LONG):
                say(f"{NAME}: {tokens} tokens, {isolation} isolation")
                found[tokens] = await take_turns(
                    options.pairs, _ours(engine, tokens, jobs), _bare(backend, tokens, jobs)
                )
                table.compare(f"{tokens} tokens, {isolation}", "µs/job", found[tokens])
            table.compare(f"each further token, {isolation}", "µs/token", _slope(found))
            added = [
                ours - peer
                for ours, peer in zip(found[_SHORT].ours, found[_SHORT].peer, strict=True)
            ]
            table.alone(f"added to a job of {_SHORT} tokens, {isolation}", "µs/job", added)
    return table


def _ours(engine: Engine, tokens: int, jobs: int) -> Callable[[], Awaitable[float]]:
    seconds = job_seconds(engine, {"prompt": "a prompt"}, tokens, jobs)

    async def once() -> float:
        return await seconds() * 1e6

    return once


def _bare(backend: ScriptedBackend, tokens: int, jobs: int) -> Callable[[], Awaitable[float]]:
    def answer() -> str:
        pieces: list[bytes] = []

        def on_piece(piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
            pieces.append(piece)
            return len(pieces) == tokens

        backend.run(1, "a prompt", SamplingParams(max_tokens=tokens), on_piece)
        return b"".join(pieces).decode()

    async def once() -> float:
        started = perf_counter()
        for _ in range(jobs):
            answer()
        return (perf_counter() - started) / jobs * 1e6

    return once


def _slope(found: dict[int, Pairs]) -> Pairs:
    """Return the cost of one more token, from the difference of two lengths."""
    more = _LONG - _SHORT
    slopes = Pairs()
    # Differences of medians, because the difference of two single runs is mostly noise.
    slopes.add(
        (Sample.of(found[_LONG].ours).median - Sample.of(found[_SHORT].ours).median) / more,
        (Sample.of(found[_LONG].peer).median - Sample.of(found[_SHORT].peer).median) / more,
    )
    return slopes
