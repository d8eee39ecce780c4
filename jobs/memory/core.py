"""What the sides of a store share: its parts, and what follows when a job has changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from jobs.journal_port import Journal, NoJournal
from jobs.limits import Limits
from jobs.memory.expiry import Timekeeper
from jobs.memory.job_record import Entry
from jobs.memory.job_table import Ledger
from jobs.memory.leases import Leases
from jobs.memory.transitions import Changes
from jobs.memory.workers import Workers
from jobs.model import Job, JobStatus


class Core:
    """The parts of a store, put together; owned by one event loop."""

    def __init__(
        self,
        limits: Limits | None = None,
        journal: Journal | None = None,
        *,
        on_ended: Callable[[Job], object] = lambda job: None,
        on_started: Callable[[Job], object] = lambda job: None,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits or Limits()
        self._journal: Journal = journal or NoJournal()
        self._on_ended = on_ended
        self._on_started = on_started
        self._now = now
        self._monotonic = monotonic
        self._workers = Workers()
        self._ledger = Ledger(self._limits, self._journal, self._workers)
        self._changes = Changes(self._ledger, self._journal, self._took_effect)
        self._time = Timekeeper(self._ledger, self._workers, self._limits, now, monotonic)
        self._leases = Leases(self._ledger, self._time, self._limits, now, monotonic)
        self._clock: asyncio.Task[None] | None = None

    async def _settled(self, job_id: str) -> Entry | None:
        """Return a job's entry when no change of it is on its way."""
        while (entry := self._ledger.get(job_id)) is not None and entry.changing is not None:
            await asyncio.wait({entry.changing})
        return entry

    def _took_effect(self, before: Job, entry: Entry) -> None:
        """Draw the consequences of a change that everybody can see now."""
        job = entry.job
        if job.status is JobStatus.IN_QUEUE:
            self._leases.queue_again(entry)
            return
        self._time.limit(job, "retention")
        if job.status in (JobStatus.CANCELLED, JobStatus.TIMED_OUT):
            # Not before: a worker that has stopped a job says no more of it, and the job would
            # hang if the disk had refused its end.
            self._time.stop(before, entry)
        if entry.private:
            self._ledger.deliver(job.id)
        self._on_ended(job)
