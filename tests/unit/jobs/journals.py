"""A journal whose writes a test completes by hand."""

from __future__ import annotations

import asyncio

from jobs import NoJournal, StoreUnavailable
from jobs.model import Job
from tests.waiting import run_ready_tasks


class ManualJournal(NoJournal):
    """Blocks each `flush` until the test accepts or refuses the writes."""

    def __init__(self) -> None:
        self.saved: list[Job] = []
        self.deleted: list[str] = []
        self.waiters: list[asyncio.Future[None]] = []
        self.flush_called = asyncio.Event()

    def save(self, job: Job) -> None:
        self.saved.append(job)

    def delete(self, job_id: str) -> None:
        self.deleted.append(job_id)

    async def flush(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        self.flush_called.set()
        await waiter

    async def accept_writes(self) -> None:
        """Let all pending calls of `flush` return."""
        await self._resolve_waiters(None)

    async def refuse_writes(self) -> None:
        """Let all pending calls of `flush` fail, as on a full disk."""
        await self._resolve_waiters(StoreUnavailable("the disk is full"))

    async def _resolve_waiters(self, error: StoreUnavailable | None) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        await run_ready_tasks(5)
