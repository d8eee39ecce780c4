"""Jobs in this process's memory: for tests, and for a server that may forget them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
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
        self._jobs: dict[str, Job] = {}
        # Not a Condition: before Python 3.13 it loses a job when the waiter it woke is cancelled.
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._results: dict[str, asyncio.Future[Job]] = {}
        # What has ended and is still kept, oldest first.
        self._ended: deque[Job] = deque()

    async def enqueue(self, job_input: Any, *, prefix: str = "") -> Job:
        """Accept a job under a new id. Raises StoreFull."""
        self._sweep()
        if len(self._jobs) >= self._max_jobs and self._ended:
            self._forget_oldest()
        if len(self._jobs) >= self._max_jobs:
            raise StoreFull(f"{self._max_jobs} jobs are waiting or running, the most that may")
        job = Job(id=f"{prefix}{uuid.uuid4()}-u1", input=job_input, queued_at=time.monotonic())
        self._jobs[job.id] = job
        self._results[job.id] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(job.id)
        return job

    async def receive(self) -> Job:
        """Wait for the oldest job in the queue and mark it as being worked on."""
        job_id = await self._queue.get()
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
        self._ended.append(job)
        # Waiters get the job itself: it may be forgotten before they have their turn.
        self._results.pop(job_id).set_result(job)
        return job

    async def get(self, job_id: str) -> Job | None:
        """Return a job as it is now; None when there is none, or no longer."""
        self._sweep()
        return self._jobs.get(job_id)

    async def wait(self, job_id: str, timeout_s: float) -> Job:
        """Return a job when it has ended, or as it is after `timeout_s`."""
        result = self._results.get(job_id)
        if result is not None:
            await asyncio.wait({result}, timeout=timeout_s)
            if result.done():
                return result.result()
        return self._jobs[job_id]

    def counts(self) -> dict[JobStatus, int]:
        """Return how many jobs there are in each state."""
        counts = dict.fromkeys(JobStatus, 0)
        for job in self._jobs.values():
            counts[job.status] += 1
        return counts

    def _sweep(self) -> None:
        """Forget what ended long ago."""
        horizon = time.monotonic() - self._retention_s
        while self._ended and (self._ended[0].ended_at or 0.0) < horizon:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        del self._jobs[self._ended.popleft().id]
