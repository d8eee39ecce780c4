"""Expiry of leases, time limits and retention."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Literal

from common.failpoints import failpoint
from jobs.memory.deadline_queue import Deadline, DeadlineQueue
from jobs.memory.job_record import JobRecord
from jobs.memory.job_table import JobTable
from jobs.memory.workers import Workers
from jobs.model import Job, JobStatus, Limits

logger = logging.getLogger(__name__)

# Retry delay for a deadline of a job whose transition is still being written.
_TRANSITION_RETRY_S = 0.1
# Retry delay after the end of a job could not be written.
_WRITE_RETRY_S = 1.0
# RunPod's SDK starts the jobs that it has received ten times a second; on a busy machine later.
MAX_START_DELAY_S = 0.5
# Upper bound of each wait: expired stops of workers have no deadline in the queue.
_MAX_WAIT_S = 60.0


class ExpiryScheduler:
    """Schedules the deadlines of all jobs and handles them when they are due; owned by the store.

    Leases use the monotonic clock. The other limits count from times that are saved with the job,
    by the system clock, so they continue correctly after a restart of the server.
    """

    def __init__(
        self,
        table: JobTable,
        workers: Workers,
        limits: Limits,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        on_stopped: Callable[[Job], object],
    ) -> None:
        self._on_stopped = on_stopped
        self._table = table
        self._workers = workers
        self._limits = limits
        self._now = now
        self._monotonic = monotonic
        # Set when something becomes due earlier than `wait_until_due` knows.
        self._has_earlier = asyncio.Event()
        self._deadlines = DeadlineQueue(self._is_current, self._has_earlier.set)

    def start_lease(self, record: JobRecord, lease_s: float) -> None:
        """Start the lease of a job in progress, and its execution timeout."""
        job = record.job
        record.lease_until = self._monotonic() + lease_s
        self._deadlines.add(record.lease_until, job.id, "lease", job.attempt)
        timeout_s = job.policy.execution_timeout_ms / 1000
        self._add_since(job.started_at or 0.0, timeout_s, job.id, "execution", job.attempt)

    def schedule_ttl(self, job: Job) -> None:
        """Remove a job that has not ended when its ttl has passed."""
        self._add_since(job.queued_at, job.policy.ttl_ms / 1000, job.id, "ttl", job.queued_at)

    def schedule_retention(self, job: Job) -> None:
        """Remove a job that has ended when its retention has passed."""
        ended_at = job.ended_at or 0.0
        retention_s = self._limits.sync_retention_s if job.sync else self._limits.retention_s
        self._add_since(ended_at, retention_s, job.id, "retention", ended_at)

    def request_stops(self, job: Job, record: JobRecord) -> None:
        """Tell the worker that has a job, and one that lost it but may still run it, to stop it.

        A worker that has just received a job may not have started it, and ignores the stop of a job
        that it does not run. So the stop is sent a second time. A worker that has already stopped
        the job ignores the second one.
        """
        now = self._monotonic()
        for worker_id in {job.worker_id, record.worker_still_running(now)}:
            if worker_id is not None:
                self._workers.request_stop(worker_id, job.id, now)
        if job.worker_id is not None and self._now() - (job.started_at or 0.0) < MAX_START_DELAY_S:
            self._workers.repeat_stop_at(job.worker_id, job.id, now + MAX_START_DELAY_S)
            self._has_earlier.set()
        if job.worker_id is not None:
            self._on_stopped(record.job)

    def _add_since(
        self,
        since: float,
        limit_s: float,
        job_id: str,
        kind: Literal["execution", "ttl", "retention"],
        version: float,
    ) -> None:
        # Not negative, even if the system clock was set back in between.
        passed_s = max(0.0, self._now() - since)
        self._deadlines.add(self._monotonic() + limit_s - passed_s, job_id, kind, version)

    async def wait_until_due(self) -> None:
        """Return when something is due, or may be; sleeps while the store has nothing to do."""
        while (remaining_s := min(self._next_due_at() - self._monotonic(), _MAX_WAIT_S)) > 0:
            self._has_earlier.clear()
            try:
                async with asyncio.timeout(remaining_s):
                    await self._has_earlier.wait()
            except TimeoutError:
                return

    def _next_due_at(self) -> float:
        return min(self._deadlines.next_due_at, self._workers.next_repeat_at)

    def process_due(self, reclaim: Callable[[JobRecord, str], Sequence[Job]]) -> list[Job]:
        """Handle everything that is due; return the jobs that must end, in their final state.

        `reclaim` takes a job from a worker whose lease has expired. It returns the failed job if it
        was lost too often, and nothing otherwise.
        """
        now = self._monotonic()
        # Lease and execution timeout may both expire; the job ends once.
        ended: dict[str, Job] = {}
        for deadline in self._deadlines.pop_due(now):
            record = self._table.find(deadline.job_id)
            if record is None or not self._is_current(deadline):
                continue
            if record.transition is not None:
                self._postpone(deadline, now + _TRANSITION_RETRY_S)
            elif deadline.kind == "retention":
                failpoint("forgotten")
                self._table.remove(record)
            elif deadline.kind == "ttl":
                failpoint("expired")
                _log_expiry(record.job)
                self.request_stops(record.job, record)
                self._table.remove(record)
            elif deadline.kind == "lease" and record.lease_until > now:
                self._postpone(deadline, record.lease_until)
            else:
                failpoint("timed-out" if deadline.kind == "execution" else "lease-over")
                failed = (
                    [self._time_out(record.job)]
                    if deadline.kind == "execution"
                    else reclaim(record, "its worker was not heard of any more")
                )
                if failed:
                    # Stale as soon as the end is written, so this retries only a failed write.
                    self._postpone(deadline, now + _WRITE_RETRY_S)
                for job in failed:
                    ended.setdefault(job.id, job)
        self._workers.process_due_stops(now)
        # A later deadline of the same call may have removed the job.
        return [job for job_id, job in ended.items() if self._table.find(job_id) is not None]

    def _postpone(self, deadline: Deadline, due_at: float) -> None:
        self._deadlines.add(due_at, deadline.job_id, deadline.kind, deadline.version)

    def _time_out(self, job: Job) -> Job:
        timeout_s = job.policy.execution_timeout_ms / 1000
        return job.replace(
            status=JobStatus.TIMED_OUT,
            ended_at=self._now(),
            error=f"the job ran for more than {timeout_s:g} s (executionTimeout)",
        )

    def _is_current(self, deadline: Deadline) -> bool:
        """Return whether a deadline still applies to its job."""
        record = self._table.find(deadline.job_id)
        if record is None:
            return False
        job = record.job
        if deadline.kind == "retention":
            return job.ended_at == deadline.version
        if deadline.kind == "ttl":
            return not job.status.is_final and job.queued_at == deadline.version
        return job.status is JobStatus.IN_PROGRESS and job.attempt == deadline.version


def _log_expiry(job: Job) -> None:
    """Log that a job is removed because its ttl has passed."""
    location = "on its worker" if job.status is JobStatus.IN_PROGRESS else "in the queue"
    logger.warning(
        "job %s expired %s: its ttl of %g s is over",
        job.id,
        location,
        job.policy.ttl_ms / 1000,
        extra={"job_id": job.id},
    )
