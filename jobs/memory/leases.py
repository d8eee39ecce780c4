"""The leases of jobs: which worker has which job, under which attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from common.failpoints import failpoint
from jobs.memory.expiry import ExpiryScheduler
from jobs.memory.job_record import JobRecord
from jobs.memory.job_table import JobTable
from jobs.model import Job, JobStatus, Limits

logger = logging.getLogger(__name__)


class Leases:
    """Grants leases and ends them; owned by the store.

    The attempt is a fencing token: calls with another attempt than the current one come from a
    worker that was given up, and are ignored.
    """

    def __init__(
        self,
        table: JobTable,
        expiry: ExpiryScheduler,
        limits: Limits,
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._table = table
        self._expiry = expiry
        self._limits = limits
        self._now = now
        self._monotonic = monotonic

    def find(self, job_id: str, attempt: int) -> JobRecord | None:
        """Return the record of a job if this attempt is in progress."""
        record = self._table.find(job_id)
        if record is None:
            return None
        job = record.job
        return record if job.status is JobStatus.IN_PROGRESS and job.attempt == attempt else None

    def grant(self, job_id: str, worker_id: str, lease_s: float) -> Job:
        """Lease to a worker a job that was removed from its ready queue."""
        record = self._table.get(job_id)
        job = record.job.replace(
            status=JobStatus.IN_PROGRESS,
            attempt=record.job.attempt + 1,
            worker_id=worker_id,
            started_at=self._now(),
        )
        self._table.set_job(record, job)
        self._table.save(record, job)
        failpoint("leased")
        self._expiry.start_lease(record, lease_s)
        return job

    def may_still_run(self, job_id: str, worker_id: str) -> bool:
        """Return whether a worker has lost this job but may still run it without knowing."""
        return self._table.get(job_id).worker_still_running(self._monotonic()) == worker_id

    def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Extend a lease so that it expires no earlier than `lease_s` from now.

        Also while the end of the job is being written: if the disk refuses it, the lease continues.
        """
        record = self.find(job_id, attempt)
        if record is None:
            return False
        record.lease_until = max(record.lease_until, self._monotonic() + lease_s)
        return True

    def reclaim(self, record: JobRecord, reason: str) -> Sequence[Job]:
        """Take a job from a worker that is not told; return what `requeue_or_fail` returns."""
        record.lost_worker_id = record.job.worker_id
        record.lost_until = self._monotonic() + record.job.policy.execution_timeout_ms / 1000
        return self.requeue_or_fail(record, reason)

    def requeue_or_fail(self, record: JobRecord, reason: str | None) -> Sequence[Job]:
        """Return a job to the queue; with a `reason` the attempt counts as lost.

        A job that was lost too often is not queued. It is returned with the status FAILED, which
        the caller must write before it becomes visible.
        """
        job = record.job
        lost_attempts = job.lost_attempts + (reason is not None)
        if reason is not None and lost_attempts >= self._limits.max_losses:
            times = "once" if lost_attempts == 1 else f"{lost_attempts} times"
            error = f"the job was started and lost {times}; the last time: {reason}"
            return [
                job.replace(
                    status=JobStatus.FAILED,
                    ended_at=self._now(),
                    error=error,
                    lost_attempts=lost_attempts,
                )
            ]
        fields = {"job_id": job.id}
        if reason is not None:
            logger.warning("job %s was lost and waits again: %s", job.id, reason, extra=fields)
        else:
            logger.info("job %s was given back and waits again", job.id, extra=fields)
        waiting = job.replace(
            status=JobStatus.IN_QUEUE,
            lost_attempts=lost_attempts,
            worker_id=None,
            started_at=None,
            progress=b"",
        )
        self._table.set_job(record, waiting)
        self._table.save(record, waiting)
        failpoint("nack")
        self._push(record)
        return ()

    def requeue_retried(self, record: JobRecord) -> None:
        """Queue a job that a client has retried, with a new ttl."""
        self._expiry.schedule_ttl(record.job)
        self._push(record)

    def _push(self, record: JobRecord) -> None:
        # The chunks belong to the attempt that has ended; the next attempt starts a new stream.
        self._table.clear_stream(record)
        record.taken_until = (record.job.attempt, 0)
        self._table.get_or_create_endpoint(record.job.endpoint).queue.push(record.job)
