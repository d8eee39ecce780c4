"""Which worker has which job, and under which attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from jobs.failpoints import hit
from jobs.limits import Limits
from jobs.memory.expiry import Timekeeper
from jobs.memory.job_record import Entry
from jobs.memory.job_table import Ledger
from jobs.model import Job, JobStatus

logger = logging.getLogger(__name__)


class Leases:
    """Hands jobs out and takes them back; owned by the store.

    The attempt is a fencing token: what is said under another than the one in progress is of a
    worker that was given up.
    """

    def __init__(
        self,
        ledger: Ledger,
        time: Timekeeper,
        limits: Limits,
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._time = time
        self._limits = limits
        self._now = now
        self._monotonic = monotonic

    def entry(self, job_id: str, attempt: int) -> Entry | None:
        """Return a job's entry if this attempt is the one in progress."""
        entry = self._ledger.get(job_id)
        if entry is None:
            return None
        job = entry.job
        return entry if job.status is JobStatus.IN_PROGRESS and job.attempt == attempt else None

    def give(self, job_id: str, worker_id: str, lease_s: float) -> Job:
        """Give a worker a job that has left its line."""
        entry = self._ledger.entry(job_id)
        job = entry.job.but(
            status=JobStatus.IN_PROGRESS,
            attempt=entry.job.attempt + 1,
            worker_id=worker_id,
            started_at=self._now(),
        )
        self._ledger.become(entry, job)
        self._ledger.save(entry, job)
        hit("leased")
        self._time.lease(entry, lease_s)
        return job

    def may_still_run(self, job_id: str, worker_id: str) -> bool:
        """Whether a worker has lost this job and had not the time to end it since."""
        return self._ledger.entry(job_id).lost_to(self._monotonic()) == worker_id

    def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Let a lease end no earlier than `lease_s` from now.

        Also while an end of the job is on its way: the disk may refuse it, and the lease goes on.
        """
        entry = self.entry(job_id, attempt)
        if entry is None:
            return False
        entry.lease_until = max(entry.lease_until, self._monotonic() + lease_s)
        return True

    def lose(self, entry: Entry, reason: str) -> Sequence[Job]:
        """Take a job from a worker that does not know it; return what `take_back` returns."""
        entry.lost_by = entry.job.worker_id
        entry.lost_until = self._monotonic() + entry.job.policy.execution_timeout_ms / 1000
        return self.take_back(entry, reason)

    def take_back(self, entry: Entry, reason: str | None) -> Sequence[Job]:
        """Let a job wait again; with a `reason` it was lost.

        One that was lost too often is returned instead, failed: to be written before it is seen.
        """
        job = entry.job
        losses = job.losses + (reason is not None)
        if reason is not None and losses >= self._limits.max_losses:
            times = "once" if losses == 1 else f"{losses} times"
            error = f"the job was started and lost {times}; the last time: {reason}"
            return [
                job.but(status=JobStatus.FAILED, ended_at=self._now(), error=error, losses=losses)
            ]
        told = {"job_id": job.id}
        if reason is not None:
            logger.warning("job %s was lost and waits again: %s", job.id, reason, extra=told)
        else:
            logger.info("job %s was given back and waits again", job.id, extra=told)
        waiting = job.but(
            status=JobStatus.IN_QUEUE,
            losses=losses,
            worker_id=None,
            started_at=None,
            progress=b"",
        )
        self._ledger.become(entry, waiting)
        self._ledger.save(entry, waiting)
        hit("nack")
        self._queue(entry)
        return ()

    def queue_again(self, entry: Entry) -> None:
        """Let a job that had ended wait as a new one does."""
        self._time.limit(entry.job, "ttl")
        self._queue(entry)

    def _queue(self, entry: Entry) -> None:
        # What was streamed is of a run that is over: the next begins anew.
        self._ledger.begin_stream(entry)
        entry.drained = (entry.job.attempt, 0)
        self._ledger.endpoint(entry.job.endpoint).line.push(entry.job)
