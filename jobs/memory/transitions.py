"""Changes of job status that are written to the disk before they become visible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from common.failpoints import failpoint
from jobs.memory.job_record import JobRecord
from jobs.memory.job_table import JobTable
from jobs.model import Job, JobStatus
from jobs.ports import Journal

_Transition: TypeAlias = tuple[JobRecord, Job]


class TransitionWriter:
    """Writes new job states to the journal, waits for the disk, and then makes them visible.

    While a transition is being written, `transition` of its records is set: the job cannot change
    in another way, and it is in no ready queue. If the disk refuses the write, the old state stays.
    A transition continues if its caller is cancelled: a result that a worker has sent is kept.

    Owned by the store. `on_applied` is called with the old job and the record of each job after its
    transition.
    """

    def __init__(
        self, table: JobTable, journal: Journal, on_applied: Callable[[Job, JobRecord], None]
    ) -> None:
        self._table = table
        self._journal = journal
        self._on_applied = on_applied
        self._tasks: set[asyncio.Task[None]] = set()

    async def apply(self, jobs: Sequence[Job]) -> None:
        """Change jobs to the given states and return when they are visible.

        Raises StoreUnavailable.
        """
        task = self.start(jobs)
        if task is not None:
            await asyncio.shield(task)

    def start(self, jobs: Sequence[Job]) -> asyncio.Task[None] | None:
        """Start to change jobs to the given states; none of them may be in a transition.

        Returns None if the new states are visible at once: unpublished jobs need no write.
        """
        if not jobs:
            return None
        transitions = [(self._table.get(job.id), job) for job in jobs]
        for record, job in transitions:
            if record.job.status is JobStatus.IN_QUEUE:
                self._table.get_or_create_endpoint(job.endpoint).queue.remove(job.id)
            self._table.save(record, job)
        failpoint("change-saved")
        if all(record.is_unpublished for record, _ in transitions):
            failpoint("change-private")
            self._apply(transitions)
            return None
        task = asyncio.create_task(self._write(transitions))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        for record, _ in transitions:
            record.transition = task
        return task

    async def wait_until_finished(self) -> None:
        """Return when no transition is being written."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _write(self, transitions: Sequence[_Transition]) -> None:
        try:
            await self._journal.flush()
        except BaseException:
            for record, _ in transitions:
                record.transition = None
                self._table.save(record, record.job)
                if record.job.status is JobStatus.IN_QUEUE:
                    endpoint = self._table.get_or_create_endpoint(record.job.endpoint)
                    endpoint.queue.push(record.job)
            raise
        failpoint("change-durable")
        for record, _ in transitions:
            record.transition = None
        self._apply(transitions)
        failpoint("change-visible")

    def _apply(self, transitions: Sequence[_Transition]) -> None:
        old_jobs = [(record.job, record) for record, _ in transitions]
        for record, job in transitions:
            self._table.set_job(record, job)
        for old_job, record in old_jobs:
            self._on_applied(old_job, record)
