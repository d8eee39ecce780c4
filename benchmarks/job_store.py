"""The job store: accepted and durable jobs per second, by number of submitters.

Ours is the store of the local server in this process, with the SQLite journal in its own process.
Submitters are tasks that enqueue one job after the other, each waiting until it is durable. The
peer is one connection that inserts and commits in a loop, on the same disk with the same durability
(WAL, synchronous=FULL), without event loop, queue and states.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks.measure import Table, min_budget, take_turns
from benchmarks.options import Options, print_progress
from emulator.server.gc_tuning import GarbageCollectorTuning
from jobs import Limits, MemoryJobStore, NewJob, SqliteJournal

NAME = "job_store"
_INPUT = b'{"prompt": "a prompt", "stream": false}'
_BUDGETS = {1: None, 16: None, 128: min_budget(15_000)}
# Enough for a few hundred requests to the store process.
_EACH = 300
_LIMIT_S = 900.0


def run(options: Options) -> list[Table]:
    """Measure by the number of submitters."""
    with tempfile.TemporaryDirectory() as folder:
        return [uvloop.run(_run(options, Path(folder)))]


async def _run(options: Options, folder: Path) -> Table:
    table = Table(title=NAME, ours="MemoryJobStore", peer="insert, commit")
    garbage = GarbageCollectorTuning()
    garbage.start()
    try:
        async with asyncio.timeout(_LIMIT_S):
            for submitters, budget in _BUDGETS.items():
                name = f"{submitters} submitter{'s' if submitters > 1 else ''}"
                print_progress(f"{NAME}: {name}, {options.pairs} pairs")
                each = _EACH if submitters > 1 else 4 * _EACH
                each = options.size(each, each // 4)
                pairs = await take_turns(
                    options.pairs, _ours(folder, submitters, each), _plain(folder, each * 4)
                )
                table.compare(name, "jobs/s", pairs, budget)
    finally:
        garbage.close()
    return table


def _ours(folder: Path, submitters: int, each: int) -> Callable[[], Awaitable[float]]:
    new = NewJob(endpoint="default", input=_INPUT)
    jobs = submitters * each

    async def submit(store: MemoryJobStore) -> None:
        for _ in range(each):
            await store.enqueue(new)

    async def measure() -> float:
        path = folder / f"{uuid.uuid4()}.sqlite3"
        store = MemoryJobStore(Limits(max_jobs=jobs), SqliteJournal(path))
        await store.start()
        try:
            started = perf_counter()
            await asyncio.gather(*(submit(store) for _ in range(submitters)))
            elapsed = perf_counter() - started
        finally:
            await store.close()
        with closing(sqlite3.connect(path)) as database:
            (stored_jobs,) = database.execute("SELECT count(*) FROM jobs").fetchone()
        assert stored_jobs == jobs, "an acknowledged job is not on disk"
        _remove(path)
        return jobs / elapsed

    return measure


def _plain(folder: Path, jobs: int) -> Callable[[], Awaitable[float]]:
    async def measure() -> float:
        path = folder / f"{uuid.uuid4()}.sqlite3"
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("CREATE TABLE jobs (id TEXT PRIMARY KEY, input BLOB)")
            started = perf_counter()
            for _ in range(jobs):
                row = (str(uuid.uuid4()), _INPUT)
                # In autocommit mode each statement is committed when it returns.
                database.execute("INSERT INTO jobs (id, input) VALUES (?, ?)", row)
            elapsed = perf_counter() - started
        _remove(path)
        return jobs / elapsed

    return measure


def _remove(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
