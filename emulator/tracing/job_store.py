"""A job store that reports the jobs that are enqueued in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from jobs import Job, JobStore, NewJob


class TracedJobStore:
    """Forwards to a store, and calls `on_enqueued` in the task that enqueues a job.

    The call comes before any other task can see the job.
    """

    def __init__(self, store: JobStore, on_enqueued: Callable[[Job], None]) -> None:
        self._store = store
        self._on_enqueued = on_enqueued

    @classmethod
    def through(cls, store: JobStore, on_enqueued: Callable[[Job], None]) -> JobStore:
        """Return a store, to be used as one."""
        return cast("JobStore", cls(store, on_enqueued))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def enqueue(self, new: NewJob) -> Job:
        """Accept a job and report it."""
        job = await self._store.enqueue(new)
        self._on_enqueued(job)
        return job
