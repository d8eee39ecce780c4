"""A store that tells of the jobs that are sent to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from jobs import Job, JobStore, NewJob


class TracedJobStore:
    """The store itself, but for what comes in; told in the task of whoever sends a job."""

    def __init__(self, store: JobStore, told: Callable[[Job], None]) -> None:
        self._store = store
        self._told = told

    @classmethod
    def through(cls, store: JobStore, told: Callable[[Job], None]) -> JobStore:
        """Return a store, to be used as one."""
        return cast("JobStore", cls(store, told))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def enqueue(self, new: NewJob) -> Job:
        """Accept a job and tell of it, before anybody else can see it."""
        job = await self._store.enqueue(new)
        self._told(job)
        return job
