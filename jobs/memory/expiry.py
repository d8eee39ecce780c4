"""When a lease, a limit or a retention of a job is over, and what that means."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Literal

from jobs.failpoints import hit
from jobs.limits import Limits
from jobs.memory.deadline_queue import Agenda, Item
from jobs.memory.job_record import Entry
from jobs.memory.job_table import Ledger
from jobs.memory.workers import Workers
from jobs.model import Job, JobStatus

logger = logging.getLogger(__name__)

# A job that is changing is looked at again when it is known how that ended.
_CHANGING_S = 0.1
# What could not be written is tried again after so long.
_AGAIN_S = 1.0
# The SDK looks for jobs that it was given ten times a second; a busy machine may take longer.
BEGINS_S = 0.5
# Nothing is awaited for longer, for stops that nobody asks for are in no agenda.
_LONGEST_S = 60.0


class Timekeeper:
    """Keeps the times of all jobs; owned by the store.

    Leases are kept by the monotonic clock. The other limits count from times that are in the job,
    by the clock of the day, so that they go on where they were when a server starts again.
    """

    def __init__(
        self,
        ledger: Ledger,
        workers: Workers,
        limits: Limits,
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._workers = workers
        self._limits = limits
        self._now = now
        self._monotonic = monotonic
        self._sooner = asyncio.Event()
        self._agenda = Agenda(self._matters, self._sooner.set)

    def lease(self, entry: Entry, lease_s: float) -> None:
        """Begin the lease of a job that is in progress, and its run."""
        job = entry.job
        entry.lease_until = self._monotonic() + lease_s
        self._agenda.put(entry.lease_until, job.id, "lease", job.attempt)
        limit_s = job.policy.execution_timeout_ms / 1000
        self._put_since(job.started_at or 0.0, limit_s, job.id, "execution", job.attempt)

    def limit(self, job: Job, due: Literal["ttl", "retention"]) -> None:
        """Let a job end when it has existed, or been kept, for as long as it may."""
        if due == "ttl":
            since, limit_s = job.queued_at, job.policy.ttl_ms / 1000
        else:
            limits = self._limits
            since = job.ended_at or 0.0
            limit_s = limits.sync_retention_s if job.sync else limits.retention_s
        self._put_since(since, limit_s, job.id, due, since)

    def stop(self, job: Job, entry: Entry) -> None:
        """Have a job stopped by who has it, and by who has lost it and may not know.

        A job that has just been handed out may not run yet, and its worker drops the stop of a job
        that it does not run: it is told once more. One that has stopped it by then drops that.
        """
        now = self._monotonic()
        for worker_id in {job.worker_id, entry.lost_to(now)}:
            if worker_id is not None:
                self._workers.stop(worker_id, job.id, now)
        if job.worker_id is not None and self._now() - (job.started_at or 0.0) < BEGINS_S:
            self._workers.stop_again(job.worker_id, job.id, now + BEGINS_S)
            self._sooner.set()

    def _put_since(
        self,
        since: float,
        limit_s: float,
        job_id: str,
        due: Literal["execution", "ttl", "retention"],
        mark: float,
    ) -> None:
        # The clock of the day may have been set back since.
        passed_s = max(0.0, self._now() - since)
        self._agenda.put(self._monotonic() + limit_s - passed_s, job_id, due, mark)

    async def wait(self) -> None:
        """Return when something is due, or might be: a server with nothing to do sleeps."""
        while (left_s := min(self._next() - self._monotonic(), _LONGEST_S)) > 0:
            self._sooner.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._sooner.wait()
            except TimeoutError:
                return

    def _next(self) -> float:
        return min(self._agenda.next, self._workers.next)

    def over(self, lose: Callable[[Entry, str], Sequence[Job]]) -> list[Job]:
        """Do what time demands by now; return the jobs that have to end, as they have to.

        `lose` takes a job from a worker that was not heard of, and returns it if that ends it.
        """
        now = self._monotonic()
        # A lease and a run may be over at one time: one end is enough.
        ended: dict[str, Job] = {}
        for item in self._agenda.due(now):
            entry = self._ledger.get(item.job_id)
            if entry is None or not self._matters(item):
                continue
            if entry.changing is not None:
                self._again(item, now + _CHANGING_S)
            elif item.due == "retention":
                hit("forgotten")
                self._ledger.forget(entry)
            elif item.due == "ttl":
                hit("expired")
                _log_expiry(entry.job)
                self.stop(entry.job, entry)
                self._ledger.forget(entry)
            elif item.due == "lease" and entry.lease_until > now:
                self._again(item, entry.lease_until)
            else:
                hit("timed-out" if item.due == "execution" else "lease-over")
                ends = (
                    [self._timed_out(entry.job)]
                    if item.due == "execution"
                    else lose(entry, "its worker was not heard of any more")
                )
                if ends:
                    # It matters no more when the end is written.
                    self._again(item, now + _AGAIN_S)
                for job in ends:
                    ended.setdefault(job.id, job)
        self._workers.over(now)
        # One that was forgotten in the same look has no end any more.
        return [job for job_id, job in ended.items() if self._ledger.get(job_id) is not None]

    def _again(self, item: Item, when: float) -> None:
        self._agenda.put(when, item.job_id, item.due, item.mark)

    def _timed_out(self, job: Job) -> Job:
        limit_s = job.policy.execution_timeout_ms / 1000
        return job.but(
            status=JobStatus.TIMED_OUT,
            ended_at=self._now(),
            error=f"the job ran for more than {limit_s:g} s (executionTimeout)",
        )

    def _matters(self, item: Item) -> bool:
        """Tell whether a look at a job is still worth taking."""
        entry = self._ledger.get(item.job_id)
        if entry is None:
            return False
        job = entry.job
        if item.due == "retention":
            return job.ended_at == item.mark
        if item.due == "ttl":
            return not job.status.final and job.queued_at == item.mark
        return job.status is JobStatus.IN_PROGRESS and job.attempt == item.mark


def _log_expiry(job: Job) -> None:
    """Log that a job is forgotten because its ttl is over."""
    where = "on its worker" if job.status is JobStatus.IN_PROGRESS else "in the queue"
    logger.warning(
        "job %s expired %s: its ttl of %g s is over",
        job.id,
        where,
        job.policy.ttl_ms / 1000,
        extra={"job_id": job.id},
    )
