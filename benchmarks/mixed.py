"""All loads at the same time: saturating streams, jobs, health checks and a crash.

Our server as `make serve` runs it, with an engine of 32 slots at full speed. 31 streams are read by
one wrk and one stream by this process, at full speed. A second wrk submits jobs for an endpoint
without workers, each of which is on disk before it is acknowledged. `/health` is polled all the
time. Then the engine's process is killed under this load. Two wrk processes, this client, server,
engine and store share the machine's cores.

The time from a disconnect until the slot is free is not visible to clients, so the server records
it. Another stream waits in the queue meanwhile; the next row is the time from the disconnect to its
first text.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.client import WrongAnswer, ask
from benchmarks.jobs import ROOM, WAITING, empty
from benchmarks.measure import Table, max_budget, min_budget
from benchmarks.open_stream import OpenStream
from benchmarks.options import Options, print_progress
from benchmarks.scripts import MODEL, burst_text, job_body, write_burst
from benchmarks.servers import engine_host, run_server
from benchmarks.streams import PROMPT, settings
from benchmarks.wrk import Load, Wrk, check_installed, load

NAME = "mixed"
_SLOTS = 32
_CLIENTS = 16
_PATH = "/v1/completions"
_ENDLESS = {"model": MODEL, "prompt": PROMPT, "stream": True, "max_tokens": 2**30}
_DISCONNECTS = 5
_HEALTH_GAP_S = 0.05
_STREAMS_LIMIT_S = 120
_READY_S = 30.0
_TURN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _TurnFigures:
    """The figures of one turn; times are the maximum of the turn, except in the loads."""

    run: Load
    streams: Load
    health_ms: float
    jobs_health_ms: float
    freed_ms: float
    next_ms: float
    run_killed: Load
    recovery_ms: float


def run(options: Options) -> list[Table]:
    """Measure the mixed load, turn by turn."""
    check_installed()
    table = Table(title=NAME, ours="our server")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = settings("scripted", write_burst(folder, _SLOTS), folder, "mixed", **ROOM)
        aborts = folder / "aborts"
        with run_server("emulator", [f"--tell-aborts={aborts}"], env) as port:
            _show(table, uvloop.run(_run(options, port, aborts)))
    return [table]


def _show(table: Table, turns: list[_TurnFigures]) -> None:
    def add_row(name: str, unit: str, of: Any, budget: Any = None) -> None:
        table.add_single(name, unit, [of(each) for each in turns], budget)

    jobs = f"/run, {_CLIENTS} clients"
    add_row(f"{_SLOTS} streams", "MB/s", lambda each: each.streams.megabytes / each.streams.seconds)
    add_row(jobs, "jobs/s", lambda each: each.run.rate, min_budget(1_000))
    add_row(f"{jobs}, p50", "ms", lambda each: each.run.p50_ms)
    add_row(f"{jobs}, p99", "ms", lambda each: each.run.p99_ms, max_budget(50))
    add_row("/health, worst", "ms", lambda each: each.health_ms, max_budget(100))
    add_row("/v2/{endpoint}/health, worst", "ms", lambda each: each.jobs_health_ms, max_budget(100))
    add_row(
        f"from a disconnect until its slot is free, worst of {_DISCONNECTS}",
        "ms",
        lambda each: each.freed_ms,
        max_budget(50),
    )
    add_row(
        f"from a disconnect to the next stream's first text, worst of {_DISCONNECTS}",
        "ms",
        lambda each: each.next_ms,
    )
    killed = f"{jobs}, engine host killed meanwhile"
    add_row(killed, "jobs/s", lambda each: each.run_killed.rate)
    add_row(f"{killed}, p99", "ms", lambda each: each.run_killed.p99_ms)
    add_row(
        "from the engine host's SIGKILL to the next answer", "ms", lambda each: each.recovery_ms
    )
    table.notes.append(
        "All rows of a turn are measured at the same time. No job was refused or lost, and the "
        "engine was restarted exactly once each time it was killed."
    )


async def _run(options: Options, port: int, aborts: Path) -> list[_TurnFigures]:
    turns = []
    for turn in range(options.pairs + 1):
        print_progress(f"{NAME}: turn {turn} of {options.pairs}")
        async with asyncio.timeout(_TURN_S):
            turns.append(await _turn(port, options, aborts))
    # The first one is a warm-up.
    return turns[1:]


async def _turn(port: int, options: Options, aborts: Path) -> _TurnFigures:
    seconds = options.size(5, 2)
    async with _saturating(port) as streams:
        own = await OpenStream.ask(port, _PATH, _ENDLESS)
        await _until(port, running=_SLOTS)
        jobs = asyncio.create_task(_enqueue(port, seconds))
        # The probes must end before the load does.
        health, jobs_health, (freed_ms, next_ms, own) = await asyncio.gather(
            _health_ms(port, "/health", seconds - 0.5),
            _health_ms(port, f"{WAITING}/health", seconds - 0.5),
            _disconnects(port, own, seconds - 0.5, aborts),
        )
        run_load = await jobs
        own.close()
        streams.stop()
        streams_load = await streams.wait()
    run_killed, recovery_ms = await _kill(port, options)
    await empty(port, run_load.requests + run_killed.requests)
    return _TurnFigures(
        run=run_load,
        streams=streams_load,
        health_ms=health,
        jobs_health_ms=jobs_health,
        freed_ms=freed_ms,
        next_ms=next_ms,
        run_killed=run_killed,
        recovery_ms=recovery_ms,
    )


@asynccontextmanager
async def _saturating(port: int) -> AsyncIterator[Wrk]:
    """Stream on all slots but one within the context, at full speed."""
    clients = _SLOTS - 1
    wrk = await Wrk.start(port, _PATH, _ENDLESS, clients=clients, seconds=_STREAMS_LIMIT_S)
    try:
        await _until(port, running=clients)
        yield wrk
    finally:
        await wrk.close()


async def _enqueue(port: int, seconds: int) -> Load:
    return await load(port, f"{WAITING}/run", job_body(), clients=_CLIENTS, seconds=seconds)


async def _health_ms(port: int, path: str, seconds: float) -> float:
    """Return the maximum time of a health check, polled repeatedly."""
    worst, deadline = 0.0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        reply = await ask(port, path)
        reply.json()
        worst = max(worst, reply.seconds * 1000)
        await asyncio.sleep(_HEALTH_GAP_S)
    return worst


async def _disconnects(
    port: int, own: OpenStream, seconds: float, aborts: Path
) -> tuple[float, float, OpenStream]:
    """Disconnect a stream while another one waits, several times; return the maxima and the last
    stream.

    The maxima are the time from a disconnect until its slot is free, and to the first text of the
    next stream.
    """
    freed, worst = 0.0, 0.0
    for _ in range(_DISCONNECTS):
        await own.first_event()
        waiting = await OpenStream.ask(port, _PATH, _ENDLESS)
        await _until(port, running=_SLOTS, waiting=1)
        await asyncio.sleep(seconds / _DISCONNECTS / 2)
        closed = own.close()
        worst = max(worst, (await waiting.first_event() - closed) / 1e6)
        # The line is written before the next stream can start.
        freed = max(freed, (_freed(aborts, closed) - closed) / 1e6)
        own = waiting
    return freed, worst, own


def _freed(aborts: Path, after: int) -> int:
    """Return when the slot became free that was released by an abort since then."""
    [free] = [at for at in map(int, aborts.read_bytes().split()) if at > after]
    return free


async def _kill(port: int, options: Options) -> tuple[Load, float]:
    """Kill the engine's process under load; return the load of `/run` and the recovery times."""
    before = (await _engine(port))["restarts"]
    async with _saturating(port):
        jobs = asyncio.create_task(_enqueue(port, options.size(3, 2)))
        await asyncio.sleep(0.5)
        os.kill(engine_host(port), signal.SIGKILL)
        killed = time.monotonic_ns()
        recovery_ms = (await _answered(port) - killed) / 1e6
        load_ = await jobs
    restarts = (await _engine(port))["restarts"] - before
    if restarts != 1:
        raise WrongAnswer(f"the engine was killed once and restarted {restarts} times")
    return load_, recovery_ms


async def _answered(port: int) -> int:
    """Send requests until one is answered; return the time. Raises TimeoutError."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8}
    async with asyncio.timeout(_READY_S):
        while True:
            reply = await ask(port, _PATH, body)
            try:
                answer = reply.json()
            except WrongAnswer:
                # The request was on the engine that was killed.
                continue
            if answer["choices"][0]["text"] != burst_text(8):
                raise WrongAnswer(f"after the restart the answer was {answer}")
            return reply.times[-1]


async def _engine(port: int) -> dict[str, Any]:
    """Return the engine's part of `/health`."""
    engine: dict[str, Any] = (await ask(port, "/health")).json()["engine"]
    return engine


async def _until(port: int, **expected: int) -> None:
    """Wait until the engine reports these counts. Raises TimeoutError."""
    async with asyncio.timeout(_READY_S):
        # The counts are in another process, so they must be polled (ASYNC110).
        while not expected.items() <= (await _engine(port)).items():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
