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
from benchmarks.options import Options, print_progress
from benchmarks.scripts import write_burst
from engine import Engine, SamplingParams
from engine.backends.options import ScriptedOptions
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
    backend = ScriptedBackend(ScriptedOptions(model_path=str(script)))
    backend.load()
    async with asyncio.timeout(_LIMIT_S), both(scripted(script)) as engines:
        for isolation, engine in zip(ISOLATIONS, engines, strict=True):
            results: dict[int, Pairs] = {}
            for tokens in (_SHORT, _LONG):
                print_progress(f"{NAME}: {tokens} tokens, {isolation} isolation")
                results[tokens] = await take_turns(
                    options.pairs, _ours(engine, tokens, jobs), _bare(backend, tokens, jobs)
                )
                table.compare(f"{tokens} tokens, {isolation}", "µs/job", results[tokens])
            table.compare(f"each further token, {isolation}", "µs/token", _slope(results))
            added = [
                ours - peer
                for ours, peer in zip(results[_SHORT].ours, results[_SHORT].peer, strict=True)
            ]
            table.add_single(f"added to a job of {_SHORT} tokens, {isolation}", "µs/job", added)
    return table


def _ours(engine: Engine, tokens: int, jobs: int) -> Callable[[], Awaitable[float]]:
    seconds = job_seconds(engine, {"prompt": "a prompt"}, tokens, jobs)

    async def measure() -> float:
        return await seconds() * 1e6

    return measure


def _bare(backend: ScriptedBackend, tokens: int, jobs: int) -> Callable[[], Awaitable[float]]:
    def answer() -> str:
        pieces: list[bytes] = []

        def on_piece(piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
            pieces.append(piece)
            return len(pieces) == tokens

        backend.run(1, "a prompt", SamplingParams(max_tokens=tokens), on_piece)
        return b"".join(pieces).decode()

    async def measure() -> float:
        started = perf_counter()
        for _ in range(jobs):
            answer()
        return (perf_counter() - started) / jobs * 1e6

    return measure


def _slope(results: dict[int, Pairs]) -> Pairs:
    """Return the cost of one more token, from the difference of two lengths."""
    more = _LONG - _SHORT
    slopes = Pairs()
    # Differences of medians, because the difference of two single runs is mostly noise.
    slopes.add(
        (Sample.of(results[_LONG].ours).median - Sample.of(results[_SHORT].ours).median) / more,
        (Sample.of(results[_LONG].peer).median - Sample.of(results[_SHORT].peer).median) / more,
    )
    return slopes
