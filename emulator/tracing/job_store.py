"""A job store that reports the jobs that are enqueued in it."""

from __future__ import annotations

from collections.abc import Callable

from jobs import Job, JobStore, NewJob
from jobs.forwarding_store import ForwardingJobStore


class TracedJobStore(ForwardingJobStore):
    """Forwards to a store, and calls `on_enqueued` in the task that enqueues a job.

    The call comes before any other task can see the job.
    """

    def __init__(self, store: JobStore, on_enqueued: Callable[[Job], None]) -> None:
        super().__init__(store)
        self._on_enqueued = on_enqueued

    async def enqueue(self, new: NewJob) -> Job:
        """Accept a job and report it."""
        job = await self._store.enqueue(new)
        self._on_enqueued(job)
        return job
