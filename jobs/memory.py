"""Jobs in this process's memory: for tests, and for a server that may forget them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict, deque
from dataclasses import replace
from typing import Any

from jobs.job import Job, JobStatus

# RunPod keeps the result of a /run for 30 minutes; the count bounds memory in between.
RETENTION_S = 30 * 60
MAX_JOBS = 10_000


class StoreFull(Exception):
    """As many jobs wait or run as the store holds."""


class MemoryJobStore:
    """A queue of jobs and the place where their results are looked up.

    Nothing survives the process. Jobs that ended are forgotten after `RETENTION_S`, the oldest
    sooner when there are more than `MAX_JOBS`. Owned by one event loop.
    """

    def __init__(self, max_jobs: int = MAX_JOBS, retention_s: float = RETENTION_S) -> None:
        self._max_jobs = max_jobs
        self._retention_s = retention_s
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._queue: deque[str] = deque()
        self._arrived = asyncio.Condition()
        self._ended: dict[str, asyncio.Event] = {}

    async def enqueue(self, job_input: Any, *, prefix: str = "") -> Job:
        """Accept a job under a new id. Raises StoreFull."""
        self._sweep()
        if len(self._jobs) >= self._max_jobs:
            raise StoreFull(f"{self._max_jobs} jobs are waiting or running, the most that may")
        job = Job(id=f"{prefix}{uuid.uuid4()}-u1", input=job_input, queued_at=time.monotonic())
        self._jobs[job.id] = job
        self._ended[job.id] = asyncio.Event()
        async with self._arrived:
            self._queue.append(job.id)
            self._arrived.notify()
        return job

    async def receive(self) -> Job:
        """Wait for the oldest job in the queue and mark it as being worked on."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self._queue)
            job_id = self._queue.popleft()
        job = replace(self._jobs[job_id], status=JobStatus.IN_PROGRESS, started_at=time.monotonic())
        self._jobs[job_id] = job
        return job

    async def finish(self, job_id: str, *, output: Any = None, error: str | None = None) -> Job:
        """End a job with its output or its error; a job that has ended keeps its first result."""
        job = self._jobs[job_id]
        if job.status.final:
            return job
        status = JobStatus.COMPLETED if error is None else JobStatus.FAILED
        job = replace(job, status=status, output=output, error=error, ended_at=time.monotonic())
        self._jobs[job_id] = job
        self._ended.pop(job_id).set()
        return job

    async def get(self, job_id: str) -> Job | None:
        """Return a job as it is now; None when there is none, or no longer."""
        self._sweep()
        return self._jobs.get(job_id)

    async def wait(self, job_id: str, timeout_s: float) -> Job:
        """Return a job when it has ended, or as it is after `timeout_s`."""
        ended = self._ended.get(job_id)
        if ended is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await ended.wait()
            except TimeoutError:
                pass
        return self._jobs[job_id]

    def counts(self) -> dict[JobStatus, int]:
        """Return how many jobs there are in each state."""
        counts = dict.fromkeys(JobStatus, 0)
        for job in self._jobs.values():
            counts[job.status] += 1
        return counts

    def _sweep(self) -> None:
        """Forget what ended long ago, looking only as far as jobs are old enough."""
        horizon = time.monotonic() - self._retention_s
        crowded = len(self._jobs) >= self._max_jobs
        for job_id, job in list(self._jobs.items()) if crowded else self._oldest():
            if not job.status.final:
                continue
            if (job.ended_at or 0.0) < horizon or crowded:
                del self._jobs[job_id]
            if crowded:
                return

    def _oldest(self) -> list[tuple[str, Job]]:
        first = next(iter(self._jobs.items()), None)
        return [first] if first else []
