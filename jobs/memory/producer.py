"""Operations of the clients of a store: submit, read, cancel and retry jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice

from common.failpoints import failpoint
from jobs.errors import NotRetryable
from jobs.memory.job_record import JobRecord
from jobs.memory.memory_size import copy_exactly, job_memory_bytes
from jobs.memory.state import StoreState
from jobs.model import Job, JobStatus, NewJob, new_id
from jobs.ports import QueueStats

_RETRYABLE_STATUSES = (JobStatus.FAILED, JobStatus.TIMED_OUT)


class ProducerOperations:
    """The operations of `JobStore` for clients; the protocol documents their contracts."""

    def __init__(self, state: StoreState) -> None:
        self._state = state
        self._table = state.table
        self._journal = state.journal
        self._now = state.now
        self._monotonic = state.monotonic

    async def enqueue(self, new: NewJob) -> Job:
        """Accept a job; it is durable when this returns.

        A `sync` job without a webhook is not written to the disk: its client waits for the result
        and has no id to ask with after a restart. A webhook must be called even after a restart.

        Raises:
            StoreFull: the limits of the store do not allow another job of this size.
            StoreUnavailable: the disk refused the job.
        """
        now = self._now()
        job = Job(
            id=new_id(sync=new.sync),
            endpoint=new.endpoint,
            input=copy_exactly(new.input),
            created_at=now,
            queued_at=now,
            sync=new.sync,
            policy=new.policy,
            webhook=new.webhook,
            extra=copy_exactly(new.extra),
        )
        is_unpublished = new.sync and new.webhook is None
        if is_unpublished:
            self._table.make_room(job_memory_bytes(job), jobs=1)
        else:
            await self._save(job)
        self._table.add(JobRecord(job, is_unpublished=is_unpublished))
        self._table.get_or_create_endpoint(job.endpoint).queue.push(job)
        self._state.expiry.schedule_ttl(job)
        self._state.on_enqueued(job)
        failpoint("enqueued")
        return job

    async def _save(self, job: Job) -> None:
        """Write a new job to the disk; meanwhile it is counted but not visible."""
        self._table.reserve(job)
        self._journal.save(job)
        failpoint("enqueue-saved")
        try:
            await self._journal.flush()
        except BaseException:
            # The disk refused it, or the client disconnected before it received the id.
            self._journal.delete(job.id)
            raise
        finally:
            self._table.release_reservation(job)
        failpoint("enqueue-durable")

    async def publish(self, job_id: str) -> None:
        """Write a `sync` job to the disk before its id is sent. Raises StoreUnavailable."""
        # An unpublished job that shares a transition with published ones is not written by it.
        record = await self._state.find_settled(job_id)
        if record is None or not record.is_unpublished:
            return
        # Set before the wait, so that a transition that starts meanwhile is written as well.
        record.is_unpublished = False
        self._journal.save(record.job)
        if record.chunks:
            self._journal.append_chunks(job_id, record.chunks)
        failpoint("publish")
        try:
            await self._journal.flush()
        except BaseException:
            # A transition that has started meanwhile has its own write, which may succeed. Its
            # caller relies on it, so the job stays published.
            if record.transition is None:
                record.is_unpublished = True
                self._journal.delete(job_id)
            raise
        failpoint("published")

    async def get(self, job_id: str) -> Job | None:
        """Return a job as it is now; None if it is not stored."""
        record = self._table.find(job_id)
        return record.job if record is not None else None

    async def wait(self, job_id: str, timeout_s: float) -> Job | None:
        """Return a job when it ends, or as it is after `timeout_s`; None if it is not stored."""
        deadline = self._monotonic() + timeout_s
        record = self._table.find(job_id)
        if record is None:
            return None
        while not record.job.status.is_final:
            is_woken = await record.wait_for_change(deadline - self._monotonic())
            # A job that has ended is returned even if it was removed at the same moment.
            if not record.job.status.is_final and self._table.find(job_id) is not record:
                return None
            if not is_woken:
                break
        return record.job

    async def cancel(self, job_id: str) -> Job | None:
        """End a job unless it has ended, and stop its worker. Raises StoreUnavailable."""
        record = await self._state.find_settled(job_id)
        if record is None:
            return None
        if not record.job.status.is_final:
            failpoint("cancel")
            await self._state.transitions.apply([self._to_cancelled(record.job)])
            failpoint("cancelled")
        return record.job

    def _to_cancelled(self, job: Job) -> Job:
        return job.replace(status=JobStatus.CANCELLED, ended_at=self._now())

    async def retry(self, job_id: str) -> Job | None:
        """Queue a failed job again under the same id.

        Raises:
            NotRetryable: it has neither failed nor timed out.
            StoreUnavailable: the disk refused the change.
        """
        # The caller has the id, so the job must be on the disk, even a result that was not written.
        await self.publish(job_id)
        record = await self._state.find_settled(job_id)
        if record is None:
            return None
        job = record.job
        if job.status not in _RETRYABLE_STATUSES:
            raise NotRetryable(
                f"only a job that is FAILED or TIMED_OUT can be run again, this one is {job.status}"
            )
        queued = job.replace(
            status=JobStatus.IN_QUEUE,
            queued_at=self._now(),
            lost_attempts=0,
            retries=job.retries + 1,
            worker_id=None,
            started_at=None,
            ended_at=None,
            progress=b"",
            output=None,
            error=None,
            webhook_sent=False,
        )
        failpoint("retry")
        await self._state.transitions.apply([queued])
        failpoint("retried")
        return record.job

    async def purge(self, endpoint: str) -> int:
        """Cancel all waiting jobs of an endpoint; return how many. Raises StoreUnavailable."""
        known = self._table.find_endpoint(endpoint)
        waiting = [self._table.find(job_id) for job_id in known.queue] if known else []
        cancelled = [self._to_cancelled(record.job) for record in waiting if record is not None]
        failpoint("purge")
        await self._state.transitions.apply(cancelled)
        failpoint("purged")
        return len(cancelled)

    async def reset(self, endpoint: str) -> int:
        """Cancel the jobs of an endpoint that have not ended, remove all, and return how many.

        Jobs that are submitted or retried during the call stay. Raises StoreUnavailable.
        """
        return await self._remove_all(
            [record for record in self._table if record.job.endpoint == endpoint]
        )

    async def remove(self, job_id: str) -> bool:
        """Cancel a job unless it has ended, and remove it. Raises StoreUnavailable."""
        record = self._table.find(job_id)
        return record is not None and await self._remove_all([record]) == 1

    async def _remove_all(self, records: Sequence[JobRecord]) -> int:
        while transitions := {each.transition for each in records if each.transition is not None}:
            await asyncio.wait(transitions)
        # Some may have been removed during the wait, because their ttl or retention has passed.
        records = [each for each in records if self._table.find(each.job.id) is each]
        running = [record.job for record in records if not record.job.status.is_final]
        await self._state.transitions.apply([self._to_cancelled(job) for job in running])
        removed = 0
        for record in records:
            is_stored = self._table.find(record.job.id) is record
            # A client may have retried a failed job while the others were cancelled.
            if is_stored and record.job.status.is_final and record.transition is None:
                self._table.remove(record)
                removed += 1
        if removed:
            await self._journal.flush()
        return removed

    async def stats(self, endpoint: str) -> QueueStats:
        """Count an endpoint's jobs."""
        known = self._table.find_endpoint(endpoint)
        if known is None:
            return QueueStats()
        return QueueStats(
            counts=dict(known.counts),
            retried=known.retried,
            oldest_queued_at=self.oldest_queued_at(endpoint),
        )

    def oldest_queued_at(self, endpoint: str) -> float | None:
        """Return when the longest-waiting job was queued; None if no job waits."""
        known = self._table.find_endpoint(endpoint)
        job_id = known.queue.peek_oldest() if known is not None else None
        record = self._table.find(job_id or "")
        return record.job.queued_at if record is not None else None

    def count_by_status(self) -> Mapping[JobStatus, int]:
        """Count the jobs of all endpoints; takes the same time for any number of endpoints."""
        return dict(self._table.totals)

    def list_endpoints(self) -> Sequence[str]:
        """Return the endpoints that have jobs or waiting workers."""
        return self._table.endpoint_names()

    async def list_recent_jobs(
        self, endpoint: str, limit: int, *, with_unpublished: bool = False
    ) -> Sequence[Job]:
        """Return an endpoint's newest jobs, newest first; unpublished ones only if asked for."""
        newest = (
            record.job
            for record in self._table.newest_first()
            if record.job.endpoint == endpoint and (with_unpublished or not record.is_unpublished)
        )
        return list(islice(newest, limit))

    async def mark_webhook_sent(self, job_id: str) -> None:
        """Record that a job's webhook was delivered or given up."""
        record = self._table.find(job_id)
        if record is not None and record.transition is None and record.job.status.is_final:
            record.job = record.job.replace(webhook_sent=True)
            self._table.save(record, record.job)
            failpoint("webhook-kept")
