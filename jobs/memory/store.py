"""Jobs in this process's memory, with a journal behind them if they are to survive it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from jobs.errors import StoreUnavailable
from jobs.failpoints import hit
from jobs.journal_port import Saved
from jobs.memory.consumer import WorkerSide
from jobs.memory.job_record import Entry
from jobs.memory.producer import SenderSide
from jobs.model import Job, JobStatus

logger = logging.getLogger(__name__)

# How exactly leases, time limits and retention are kept.
TICK_S = 0.1


class MemoryJobStore(SenderSide, WorkerSide):
    """The rules of jobs: who waits, who has one, when it ends, how long it is kept.

    All of it is in memory and read from there; what a client or worker is told is in the journal
    first. A change of state that somebody is told of is written, waited for, and only then visible;
    while it is on its way the job can change in no other way. A `/runsync` whose id nobody knows
    yet is not written at all. Leases, chunks and progress are written behind: what of them is lost
    costs a repetition, never a job or a second result.

    Owned by one event loop; nothing here is thread-safe. `on_ended` is called with each job that
    has ended, once it is durable; `on_started` with each that is leased to a worker, at once.
    """

    async def start(
        self, keeps: Callable[[str], bool] = lambda worker_id: False, lease_s: float = 30.0
    ) -> None:
        """Take up what the journal has and begin to keep time.

        A job that was in progress stays with its worker, under a new lease of `lease_s`, where
        `keeps` says that the worker may have survived; else it has lost that worker. Raises
        StoreUnavailable.
        """
        try:
            await self._recover(keeps, lease_s)
        except BaseException:
            # Not left with a store process that keeps others from the database.
            await self._journal.close()
            raise
        self._clock = asyncio.create_task(self._keep_time())

    async def _recover(self, keeps: Callable[[str], bool], lease_s: float) -> None:
        failed: list[Job] = []
        unsent: list[Job] = []
        found = await self._journal.load()
        hit("recovering")
        for saved in found:
            entry = self._take_up(saved)
            job = entry.job
            if job.status is JobStatus.IN_QUEUE:
                self._ledger.endpoint(job.endpoint).line.push(job)
            elif job.status is JobStatus.IN_PROGRESS:
                self._time.lease(entry, lease_s)
                if not keeps(job.worker_id or ""):
                    failed += self._leases.take_back(entry, "the server was stopped")
            elif job.webhook and not job.webhook_sent:
                unsent.append(job)
        try:
            await self._changes.make(failed)
        except StoreUnavailable as error:
            # A full disk must not keep the other jobs from being served. These still have the
            # leases given above, and end when those expire.
            logger.error("%d lost jobs could not be ended yet: %s", len(failed), error)
        hit("recovered")
        for job in unsent:
            self._on_ended(job)

    def _take_up(self, saved: Saved) -> Entry:
        job = saved.job
        entry = Entry(job)
        if job.status is not JobStatus.IN_QUEUE:
            entry.resume_stream([chunk for chunk in saved.chunks if chunk.attempt == job.attempt])
        self._ledger.add(entry)
        self._time.limit(job, "ttl")
        if job.status.final:
            self._time.limit(job, "retention")
        return entry

    async def close(self) -> None:
        """Stop keeping time and write what is left."""
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.gather(self._clock, return_exceptions=True)
        await self._journal.close()
        await self._changes.settled()

    async def sweep(self) -> None:
        """Do what time demands by now. Raises StoreUnavailable."""
        await self._changes.make(self._time.over(self._leases.lose))

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self._time.wait()
            try:
                # Nothing is waited for: a disk that hangs must not hold up the other leases.
                task = self._changes.begin(self._time.over(self._leases.lose))
            except Exception:
                logger.exception("time is kept on after this")
                continue
            if task is not None:
                task.add_done_callback(_log_failure)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("jobs could not be ended in time: %s", error)
