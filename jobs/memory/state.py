"""The state of a job store that its operations share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobs.memory.expiry import ExpiryScheduler
from jobs.memory.job_record import JobRecord
from jobs.memory.job_table import JobTable
from jobs.memory.leases import Leases
from jobs.memory.transitions import TransitionWriter
from jobs.memory.workers import Workers
from jobs.model import Job, JobStatus, Limits
from jobs.ports import Journal


class StoreState:
    """The parts of a store, connected with each other; owned by one event loop."""

    def __init__(
        self,
        limits: Limits,
        journal: Journal,
        *,
        on_enqueued: Callable[[Job], object],
        on_ended: Callable[[Job], object],
        on_started: Callable[[Job], object],
        on_stopped: Callable[[Job], object],
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.limits = limits
        self.journal = journal
        self.on_enqueued = on_enqueued
        self.on_ended = on_ended
        self.on_started = on_started
        self.now = now
        self.monotonic = monotonic
        self.workers = Workers()
        self.table = JobTable(limits, journal, self.workers)
        self.transitions = TransitionWriter(self.table, journal, self._on_transition)
        self.expiry = ExpiryScheduler(self.table, self.workers, limits, now, monotonic, on_stopped)
        self.leases = Leases(self.table, self.expiry, limits, now, monotonic)

    async def find_settled(self, job_id: str) -> JobRecord | None:
        """Return the record of a job when none of its transitions is being written."""
        while (record := self.table.find(job_id)) is not None and record.transition is not None:
            await asyncio.wait({record.transition})
        return record

    def _on_transition(self, old_job: Job, record: JobRecord) -> None:
        """Do what follows from a transition that has become visible."""
        job = record.job
        if job.status is JobStatus.IN_QUEUE:
            self.leases.requeue_retried(record)
            return
        self.expiry.schedule_retention(job)
        if job.status in (JobStatus.CANCELLED, JobStatus.TIMED_OUT):
            # Not before the end is written: a worker that has stopped a job sends nothing more, so
            # the job would hang if the disk had then refused its end.
            self.expiry.request_stops(old_job, record)
        if record.is_unpublished:
            self.table.mark_delivered(job.id)
        self.on_ended(job)
