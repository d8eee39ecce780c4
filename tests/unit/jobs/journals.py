"""A disk whose answers a test gives."""

from __future__ import annotations

import asyncio

from jobs import NoJournal, StoreUnavailable
from jobs.model import Job


class ManualJournal(NoJournal):
    """Holds everybody who waits for the disk until the test lets them go, or refuses them."""

    def __init__(self) -> None:
        self.saved: list[Job] = []
        self.forgotten: list[str] = []
        self.waiters: list[asyncio.Future[None]] = []
        self.asked = asyncio.Event()

    def save(self, job: Job) -> None:
        self.saved.append(job)

    def forget(self, job_id: str) -> None:
        self.forgotten.append(job_id)

    async def durable(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        self.asked.set()
        await waiter

    async def write(self) -> None:
        """Everything is on disk now."""
        await self._answer(None)

    async def refuse(self) -> None:
        """The disk is full."""
        await self._answer(StoreUnavailable("the disk is full"))

    async def _answer(self, error: StoreUnavailable | None) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        for _ in range(5):
            await asyncio.sleep(0)
