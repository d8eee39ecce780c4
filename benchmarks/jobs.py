"""Jobs over HTTP: our local RunPod against the SDK's own, with wrk as the client.

Ours is the server of `make serve`, with jobs in an SQLite database and the engine in its own
process. The peer is the SDK's `--rp_serve_api`, which stores nothing, with the same worker
(`processes/sdk_worker.py`), so that only the server differs. In addition, `processes/sdk_server.py`
is the SDK's server alone, with a handler that only returns our answer: the same JSON without work.
A job of ours is queued, leased, generated from a script and finished, and `/runsync` returns its
answer.

wrk only checks the status, so answers are checked before and after, and our server is queried for
failed jobs.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.client import WrongAnswer, ask
from benchmarks.job_streams import first_chunks
from benchmarks.measure import Budget, Pairs, Table, min_budget
from benchmarks.options import Options, print_progress
from benchmarks.scripts import job_body, write_answer
from benchmarks.servers import is_running_jobs, processor_s, run_server
from benchmarks.streams import settings
from benchmarks.wrk import Load, check_installed, load

NAME = "jobs"
# An endpoint without workers: its jobs stay in the queue.
WAITING = "/v2/waiting"
CLIENTS = 32
# No run of wrk may fill the store, because a rejected request costs almost nothing.
ROOM = {"MAX_JOBS": "2000000", "RESULT_RETENTION_S": "1"}
# Number of clients, whether answers are validated, and the budget.
_RUNSYNC: tuple[tuple[int, bool, Budget | None], ...] = (
    (1, False, min_budget(1.0, "ratio")),
    (CLIENTS, False, min_budget(2.5, "ratio")),
    (CLIENTS, True, None),
)
# Against a handler that does nothing.
_NO_WORK: tuple[tuple[int, bool, Budget | None], ...] = ((1, False, None), (CLIENTS, False, None))
_LIMIT_S = 1800.0
_EMPTY_S = 60.0
_CHECKS = 3
_WORDS = "The quick brown fox jumps over the dog."
_NOTES = (
    "Ours stores its jobs in SQLite; the SDK's server stores nothing. Both use the same worker, "
    "except in the rows without work, where the SDK's handler returns its input.",
    "Two cores have 2,000,000 µs of processor time per second. Divided by the time per job of all "
    "processes and wrk, this gives the maximum rate.",
    "/run: jobs of an endpoint without workers, each on disk before it is acknowledged. The SDK's "
    "own /run has no row, because for each new job it lists all earlier ones, and it stores none "
    "of them.",
)


def run(options: Options) -> list[Table]:
    """Measure `/runsync`, `/run` and the first chunks of `/stream`."""
    check_installed()
    table = Table(title=NAME, ours="our server", peer="the SDK's local server")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = write_answer(folder, _WORDS)
        env = settings("scripted", script, folder, "jobs", **ROOM)
        with run_server("emulator", env=env) as ours:
            answer = folder / "answer.json"
            answer.write_text(json.dumps(asyncio.run(_output(ours))))
            own_env = {name: value for name, value in env.items() if name != "JOB_DB"}
            with run_server("sdk_worker", env=own_env, ready=is_running_jobs) as peer:
                sides = _Side("emulator", ours), _Side("sdk_worker", peer)
                uvloop.run(_runsync(table, options, *sides, _RUNSYNC))
            with run_server("sdk_server", [str(answer)], ready=is_running_jobs) as peer:
                sides = _Side("emulator", ours), _Side("sdk_server", peer)
                uvloop.run(_runsync(table, options, *sides, _NO_WORK, ", handler without work"))
            uvloop.run(_run(table, options, ours))
        first_chunks(table, options, folder)
    table.notes.extend(_NOTES)
    return [table]


@dataclass(frozen=True, slots=True)
class _Side:
    """One of two compared servers: its module and its port."""

    module: str
    port: int

    async def load(self, clients: int, options: Options, *, validated: bool) -> tuple[Load, float]:
        """Load its `/runsync`; return the load with the processor time per job in µs."""
        before_s = processor_s(self.module, self.port)
        loads = await _loading(self.port, "/runsync", clients, options, validated=validated)()
        taken_s = processor_s(self.module, self.port) - before_s
        return loads, taken_s * 1e6 / loads.requests


async def _output(port: int) -> dict[str, Any]:
    """Return a job's output. Raises WrongAnswer if it differs from the script."""
    reply = (await ask(port, "/runsync", job_body())).json()
    if reply["status"] != "COMPLETED" or reply["output"]["choices"][0]["text"] != _WORDS:
        raise WrongAnswer(f"/runsync answered {reply}")
    output: dict[str, Any] = reply["output"]
    return output


async def _check(*ports: int) -> None:
    for port in ports * _CHECKS:
        await _output(port)


async def _runsync(
    table: Table,
    options: Options,
    ours: _Side,
    peer: _Side,
    rows: Sequence[tuple[int, bool, Budget | None]],
    of_peer: str = "",
) -> None:
    async with asyncio.timeout(_LIMIT_S):
        await _check(ours.port, peer.port)
        for clients, validated, budget in rows:
            name = f"/runsync, {clients} client{'s' if clients > 1 else ''}{of_peer}"
            name += ", validated" if validated else ""
            print_progress(f"{NAME}: {name}, {options.pairs} pairs")
            rates, p50, p99, took = await _loads_in_turns(
                options.pairs,
                partial(ours.load, clients, options, validated=validated),
                partial(peer.load, clients, options, validated=validated),
            )
            table.compare(name, "jobs/s", rates, budget)
            table.compare(f"{name}, p50", "ms", p50)
            table.compare(f"{name}, p99", "ms", p99)
            table.compare(f"{name}, processor time of all its processes", "µs/job", took)
        await _check(ours.port, peer.port)
        jobs = (await ask(ours.port, "/v2/default/health")).json()["jobs"]
        if jobs["failed"] or jobs["retried"]:
            raise WrongAnswer(f"jobs have failed: {jobs}")


def _loading(
    port: int, path: str, clients: int, options: Options, *, validated: bool = False
) -> Callable[[], Awaitable[Load]]:
    body = job_body(validated=validated)

    async def measure() -> Load:
        return await load(port, path, body, clients=clients, seconds=options.size(3, 1))

    return measure


async def _loads_in_turns(
    pairs: int,
    ours: Callable[[], Awaitable[tuple[Load, float]]],
    peer: Callable[[], Awaitable[tuple[Load, float]]],
) -> tuple[Pairs, Pairs, Pairs, Pairs]:
    """Return rates, p50, p99 and µs per job of both sides, after a warm-up of each."""
    await ours()
    await peer()
    rates, p50, p99, took = Pairs(), Pairs(), Pairs(), Pairs()
    for _ in range(pairs):
        (of_ours, our_us), (of_peer, peer_us) = await ours(), await peer()
        rates.add(of_ours.rate, of_peer.rate)
        p50.add(of_ours.p50_ms, of_peer.p50_ms)
        p99.add(of_ours.p99_ms, of_peer.p99_ms)
        took.add(our_us, peer_us)
    return rates, p50, p99, took


async def _run(table: Table, options: Options, port: int) -> None:
    name = f"/run, {CLIENTS} clients, acknowledged durable"
    print_progress(f"{NAME}: {name}, {options.pairs} turns")
    measure = _loading(port, f"{WAITING}/run", CLIENTS, options)
    loads: list[Load] = []
    async with asyncio.timeout(_LIMIT_S):
        for _ in range(options.pairs + 1):
            loads.append(await measure())
            await empty(port, loads[-1].requests)
    del loads[0]
    table.add_single(name, "jobs/s", [each.rate for each in loads], min_budget(4_000))
    table.add_single(f"{name}, p50", "ms", [each.p50_ms for each in loads])
    table.add_single(f"{name}, p99", "ms", [each.p99_ms for each in loads])


async def empty(port: int, acknowledged: int) -> None:
    """Check that all acknowledged jobs are queued, and purge them, so that all measurements start
    equal.

    Raises:
        WrongAnswer: fewer jobs are queued than were acknowledged, or the purge fails.
    """
    waiting = (await ask(port, f"{WAITING}/health")).json()["jobs"]["inQueue"]
    # When wrk stops, each connection has a request that it does not count.
    if not acknowledged <= waiting <= acknowledged + CLIENTS:
        raise WrongAnswer(f"{acknowledged} jobs were acknowledged, {waiting} wait")
    async with asyncio.timeout(_EMPTY_S):
        while (await ask(port, f"{WAITING}/requests")).json()["requests"]:
            # Repeat the purge, because the last requests of wrk may have been in transit.
            await ask(port, f"{WAITING}/purge-queue", {})
            await asyncio.sleep(0.1)
    # Wait until the last job is deleted from the disk.
    await asyncio.sleep(0.5)
