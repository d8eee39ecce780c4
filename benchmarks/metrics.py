"""The cost of monitoring: our server with a `/metrics` scrape per second, and without.

One server as `make serve` runs it is loaded in turns, with a scrape per second or without, so that
other load on the machine cancels out in the ratio. Each scrape is read completely and checked.
Counting itself cannot be disabled: the last row is its time for all events of one job, in this
process.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from benchmarks.client import WrongAnswer, ask
from benchmarks.jobs import CLIENTS
from benchmarks.measure import Budget, Pairs, Table, min_budget, take_turns
from benchmarks.options import Options, print_progress
from benchmarks.scripts import job_body, write_answer, write_burst
from benchmarks.servers import run_server
from benchmarks.streams import burst_rate, settings
from benchmarks.wrk import check_installed, load
from emulator.metrics.definitions import PREFIX, Metrics
from engine import Finish, FinishReason, Priority, Usage
from engine.hooks import FirstToken, RequestEnded, RequestStarted
from jobs import Job, JobStatus
from validation import Verdict

NAME = "metrics"
_EVERY_S = 1.0
_LIMIT_S = 1800.0
_COUNTED = f"{PREFIX}generations_total".encode()
_BUDGET: Budget = min_budget(0.98, "ratio")


def run(options: Options) -> list[Table]:
    """Measure jobs and a stream, with and without scrapes, and the time to count one job."""
    check_installed()
    table = Table(title=NAME, ours="scraped every second", peer="not scraped")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answer = write_answer(folder, "The quick brown fox jumps over the dog.")
        with run_server("emulator", env=settings("scripted", answer, folder, "jobs")) as port:
            uvloop.run(_jobs(table, options, port))
        burst = write_burst(folder)
        with run_server("emulator", env=settings("scripted", burst, folder, "burst")) as port:
            uvloop.run(_stream(table, options, port))
    table.add_single("counting one job", "µs/job", _counting(options))
    return [table]


async def _jobs(table: Table, options: Options, port: int) -> None:
    # Long enough for several scrapes per turn.
    seconds = options.size(5, 2)

    async def rate() -> float:
        results = await load(port, "/runsync", job_body(), clients=CLIENTS, seconds=seconds)
        return results.rate

    name = f"/runsync, {CLIENTS} clients"
    print_progress(f"{NAME}: {name}, {options.pairs} pairs")
    table.compare(name, "jobs/s", await _in_turns(options, port, rate), _BUDGET)


async def _stream(table: Table, options: Options, port: int) -> None:
    tokens = options.size(400_000, 40_000)
    # Long enough for several scrapes.
    rate = burst_rate(port, tokens, asks=options.size(6, 2))
    name = f"one stream after the other, of {tokens:,} tokens"
    print_progress(f"{NAME}: {name}, {options.pairs} pairs")
    table.compare(name, "tokens/s", await _in_turns(options, port, rate), _BUDGET)


async def _in_turns(options: Options, port: int, rate: Callable[[], Awaitable[float]]) -> Pairs:
    async def scraped() -> float:
        async with _scraping(port):
            return await rate()

    async with asyncio.timeout(_LIMIT_S):
        return await take_turns(options.pairs, scraped, rate)


@asynccontextmanager
async def _scraping(port: int) -> AsyncIterator[None]:
    """Scrape within the context. Raises WrongAnswer if a scrape lacks expected metrics."""
    await _scrape(port)
    task = asyncio.create_task(_scrape_on(port))
    try:
        yield
    finally:
        task.cancel()
        done = await asyncio.gather(task, return_exceptions=True)
    if not isinstance(done[0], asyncio.CancelledError):
        raise WrongAnswer(f"a scrape failed: {done[0]}")


async def _scrape_on(port: int) -> None:
    while True:
        await asyncio.sleep(_EVERY_S)
        await _scrape(port)


async def _scrape(port: int) -> None:
    if _COUNTED not in (await ask(port, "/metrics")).body:
        raise WrongAnswer(f"/metrics has no {_COUNTED.decode()}")


def _counting(options: Options) -> list[float]:
    """Return the CPU time of counting all events of one /runsync job."""
    metrics = Metrics(())
    finish = Finish(reason=FinishReason.STOP, usage=Usage(8, 32))
    events = (
        RequestStarted("id", Priority.JOB, 0.0),
        FirstToken("id", 0.003),
        RequestEnded("id", finish, None, False, 0.1, Priority.JOB, 32, 0.09),
    )
    job = Job(
        id="id",
        endpoint="default",
        input=b"{}",
        created_at=1.0,
        queued_at=1.0,
        started_at=1.1,
        ended_at=1.2,
        status=JobStatus.COMPLETED,
    )
    verdict = Verdict(text="", intent="general")
    scope = {"type": "http", "path": "/runsync"}
    jobs = options.size(20_000, 1_000)
    results = []
    for _ in range(options.pairs):
        started = time.thread_time()
        for _ in range(jobs):
            for event in events:
                metrics(event)
            metrics.count_verdict(verdict)
            metrics.job_ended(job)
            metrics.count_request(scope, 200, 0.1)
        results.append((time.thread_time() - started) / jobs * 1e6)
    return results
