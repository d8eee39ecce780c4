"""Stores on either driver, with a clock that tests control."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from jobs import Job, Limits, MemoryJobStore, NewJob, Policy, SqliteJournal
from tests.waiting import run_ready_tasks

T = TypeVar("T")

DRIVERS = ["memory", "sqlite"]
# Timeout of operations that must finish at once.
SOON_S = 30.0


class Clock:
    """A system clock and a monotonic clock that advance together."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def now(self) -> float:
        return 1_700_000_000.0 + self.elapsed_s

    def monotonic(self) -> float:
        return 50.0 + self.elapsed_s

    def tick(self, seconds: float) -> None:
        self.elapsed_s += seconds


class Stores:
    """Opens stores of one driver; stores on SQLite use the same database, one after the other."""

    def __init__(self, driver: str, folder: Path) -> None:
        self.driver = driver
        self.path = folder / "jobs.sqlite3"
        self.clock = Clock()
        self.ended: list[Job] = []
        self.stopped: list[Job] = []
        self.journals: list[SqliteJournal] = []
        self._open: list[MemoryJobStore] = []

    async def open(
        self, may_have_survived: Callable[[str], bool] = lambda worker_id: False, **limits: Any
    ) -> MemoryJobStore:
        journal = None
        if self.driver == "sqlite":
            journal = SqliteJournal(self.path, lock_wait_s=5.0)
            self.journals.append(journal)
        store = MemoryJobStore(
            Limits(**limits),
            journal,
            on_ended=self.ended.append,
            on_stopped=self.stopped.append,
            now=self.clock.now,
            monotonic=self.clock.monotonic,
        )
        self._open.append(store)
        await store.start(may_have_survived)
        return store

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()

    async def pass_time(self, store: MemoryJobStore, seconds: float) -> None:
        self.clock.tick(seconds)
        await store.sweep()


def new(number: int | str = 0, endpoint: str = "e", **fields: Any) -> NewJob:
    """Return a new job whose input is `number`."""
    policy = {
        name: fields.pop(name)
        for name in ("execution_timeout_ms", "ttl_ms", "low_priority")
        if name in fields
    }
    return NewJob(endpoint=endpoint, input=str(number).encode(), policy=Policy(**policy), **fields)


async def take(
    store: MemoryJobStore, worker: str = "w", *, endpoint: str = "e", lease_s: float = 30.0
) -> Job:
    """Lease the next job, which must be ready."""
    (job,) = await store.receive(endpoint, worker, lease_s=lease_s)
    return job


async def begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start an operation that must block, and run it until it does."""
    task = asyncio.create_task(work)
    await run_ready_tasks()
    assert not task.done()
    return task


async def soon(task: asyncio.Task[T]) -> T:
    async with asyncio.timeout(SOON_S):
        return await task


async def job_of(store: MemoryJobStore, job_id: str) -> Job:
    job = await store.get(job_id)
    assert job is not None
    return job
