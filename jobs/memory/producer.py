"""The sender's side of a store: jobs come in, are looked up, taken back and run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from jobs.errors import NotRetryable
from jobs.failpoints import hit
from jobs.memory.core import Core
from jobs.memory.job_record import Entry
from jobs.model import Job, JobStatus, NewJob, new_id
from jobs.ports import Stats

_RETRYABLE = (JobStatus.FAILED, JobStatus.TIMED_OUT)


class SenderSide(Core):
    """What a store does for whoever sends jobs; the port has the contracts."""

    async def enqueue(self, new: NewJob) -> Job:
        """Accept a job; it is durable when this returns.

        One that is `sync` is not: its sender waits for the result, and is told nothing before. Only
        a webhook is owed whatever happens.

        Raises:
            StoreFull: there are too many, or too much of them.
            StoreUnavailable: the disk did not take it.
        """
        now = self._now()
        job = Job(
            id=new_id(sync=new.sync),
            endpoint=new.endpoint,
            input=new.input,
            created_at=now,
            queued_at=now,
            sync=new.sync,
            policy=new.policy,
            webhook=new.webhook,
            extra=new.extra,
        )
        private = new.sync and new.webhook is None
        if private:
            self._ledger.make_room(job.size, jobs=1)
        else:
            await self._accept(job)
        self._ledger.add(Entry(job, private=private))
        self._ledger.endpoint(job.endpoint).line.push(job)
        self._time.limit(job, "ttl")
        hit("enqueued")
        return job

    async def _accept(self, job: Job) -> None:
        """Have a job on disk, while it counts and nobody sees it."""
        self._ledger.arrive(job)
        self._journal.save(job)
        hit("enqueue-saved")
        try:
            await self._journal.durable()
        except BaseException:
            # Refused, or its sender has gone: nobody knows its id.
            self._journal.forget(job.id)
            raise
        finally:
            self._ledger.refuse(job)
        hit("enqueue-durable")

    async def publish(self, job_id: str) -> None:
        """Have a `sync` job on disk before its id is told. Raises StoreUnavailable."""
        # A change that it shares with jobs that are told of is on its way without it.
        entry = await self._settled(job_id)
        if entry is None or not entry.private:
            return
        # Before the wait: whatever ends it meanwhile has to be on disk as well.
        entry.private = False
        self._journal.save(entry.job)
        if entry.chunks:
            self._journal.append(job_id, entry.chunks)
        hit("publish")
        try:
            await self._journal.durable()
        except BaseException:
            # A change that has begun since is told of, and may be written where this was not.
            if entry.changing is None:
                entry.private = True
                self._journal.forget(job_id)
            raise
        hit("published")

    async def get(self, job_id: str) -> Job | None:
        """Return a job as it is now; None when there is none, or no longer."""
        entry = self._ledger.get(job_id)
        return entry.job if entry is not None else None

    async def wait(self, job_id: str, timeout_s: float) -> Job | None:
        """Return a job when it has ended, or as it is after `timeout_s`; None like `get`."""
        deadline = self._monotonic() + timeout_s
        entry = self._ledger.get(job_id)
        if entry is None:
            return None
        while not entry.job.status.final:
            woken = await entry.changed(deadline - self._monotonic())
            # One that has ended is worth returning even if it was forgotten in the same moment.
            if not entry.job.status.final and self._ledger.get(job_id) is not entry:
                return None
            if not woken:
                break
        return entry.job

    async def cancel(self, job_id: str) -> Job | None:
        """End a job that has not ended, whoever has it. Raises StoreUnavailable."""
        entry = await self._settled(job_id)
        if entry is None:
            return None
        if not entry.job.status.final:
            hit("cancel")
            await self._changes.make([self._cancelled(entry)])
            hit("cancelled")
        return entry.job

    def _cancelled(self, entry: Entry) -> Job:
        return entry.job.but(status=JobStatus.CANCELLED, ended_at=self._now())

    async def retry(self, job_id: str) -> Job | None:
        """Queue a failed job again under its id.

        Raises:
            NotRetryable: it did not fail.
            StoreUnavailable: the disk did not take it.
        """
        # Whoever asks has its id, be it that of a result that was not written.
        await self.publish(job_id)
        entry = await self._settled(job_id)
        if entry is None:
            return None
        job = entry.job
        if job.status not in _RETRYABLE:
            raise NotRetryable(
                f"only a job that is FAILED or TIMED_OUT can be run again, this one is {job.status}"
            )
        again = job.but(
            status=JobStatus.IN_QUEUE,
            queued_at=self._now(),
            losses=0,
            retries=job.retries + 1,
            worker_id=None,
            started_at=None,
            ended_at=None,
            progress=b"",
            output=None,
            error=None,
            webhook_sent=False,
        )
        hit("retry")
        await self._changes.make([again])
        hit("retried")
        return entry.job

    async def purge(self, endpoint: str) -> int:
        """Cancel all that waits in a queue; return how many. Raises StoreUnavailable."""
        known = self._ledger.known(endpoint)
        waiting = [self._ledger.get(job_id) for job_id in known.line] if known else []
        ended = [self._cancelled(entry) for entry in waiting if entry is not None]
        hit("purge")
        await self._changes.make(ended)
        hit("purged")
        return len(ended)

    async def stats(self, endpoint: str) -> Stats:
        """Count an endpoint's jobs."""
        known = self._ledger.known(endpoint)
        if known is None:
            return Stats()
        return Stats(
            counts=dict(known.counts),
            retried=known.retried,
            oldest_queued_at=self.oldest_queued_at(endpoint),
        )

    def oldest_queued_at(self, endpoint: str) -> float | None:
        """Return since when the job waits that has waited longest; None where none does."""
        known = self._ledger.known(endpoint)
        oldest = self._ledger.get(known.line.oldest() or "") if known is not None else None
        return oldest.job.queued_at if oldest is not None else None

    def totals(self) -> Mapping[JobStatus, int]:
        """Count the jobs of all endpoints, however many there are of those."""
        return dict(self._ledger.totals)

    def endpoints(self) -> Sequence[str]:
        """Return the endpoints that have jobs, or workers that wait for some."""
        return self._ledger.endpoints()

    async def recent(self, endpoint: str, limit: int) -> Sequence[Job]:
        """Return an endpoint's newest jobs, newest first."""
        newest = (
            entry.job
            for entry in self._ledger.newest()
            if entry.job.endpoint == endpoint and not entry.private
        )
        return list(islice(newest, limit))

    async def dead(self, endpoint: str) -> Sequence[Job]:
        """Return the jobs that were lost too often and are still kept."""
        return [
            entry.job
            for entry in self._ledger
            if entry.job.endpoint == endpoint
            and entry.job.status is JobStatus.FAILED
            and entry.job.losses >= self._limits.max_losses
        ]

    async def webhook_sent(self, job_id: str) -> None:
        """Remember that a job's webhook needs no more tries."""
        entry = self._ledger.get(job_id)
        if entry is not None and entry.changing is None and entry.job.status.final:
            entry.job = entry.job.but(webhook_sent=True)
            self._ledger.save(entry, entry.job)
            hit("webhook-kept")
