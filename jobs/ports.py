"""Protocols of a job queue, of a job store, and of the journal that a store writes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jobs.model import Job, JobStatus, Json, NewJob


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """How many jobs of an endpoint have each status, and how many were lost or retried."""

    counts: Mapping[JobStatus, int] = field(default_factory=dict)
    retried: int = 0
    # When the job that has waited longest was queued; None if no job waits.
    oldest_queued_at: float | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One streamed output of a job: its attempt, its number in the attempt from 1, and its JSON."""

    attempt: int
    number: int
    value: Json


class JobQueue(Protocol):
    """A queue that leases each job to one worker at a time.

    A lease is identified by the job's `id` and `attempt`. For an attempt that is no longer in
    progress, `ack`, `nack` and `extend` change nothing and return False, so a worker that was
    given up but still runs does no harm.

    SQS guarantees less: a job may be leased to two workers at a time, the order and the counts are
    approximate, and every receive counts as a lost attempt. See `SqsQueue`.
    """

    async def enqueue(self, new: NewJob) -> Job:
        """Accept a job; it is durable when this returns. Raises StoreFull, StoreUnavailable."""

    async def receive(
        self,
        endpoint: str,
        worker_id: str,
        *,
        lease_s: float,
        wait_s: float = 0.0,
        limit: int = 1,
        skip_lost: bool = False,
    ) -> list[Job]:
        """Lease up to `limit` jobs to a worker, the longest-waiting first, and return them.

        Waits up to `wait_s` for a job, and returns an empty list if none comes.

        With `skip_lost`, jobs that were taken from this worker earlier are left out. Callers set it
        while the worker runs other jobs: it may still run the lost job too, and its messages about
        the old attempt would be taken for messages about the new one.
        """

    async def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Extend a lease so that it expires no earlier than `lease_s` from now."""

    async def ack(
        self, job_id: str, attempt: int, *, output: Json | None = None, error: str | None = None
    ) -> bool:
        """End a job with its output or its error; durable when this returns.

        Raises:
            StoreUnavailable: the job has not ended, and the lease is still valid.
        """

    async def nack(self, job_id: str, attempt: int, reason: str | None = None) -> bool:
        """Return a job to its old place in the queue.

        With a `reason` the attempt counts as lost, and the job fails if it was lost too often.
        """

    async def stats(self, endpoint: str) -> QueueStats:
        """Count an endpoint's jobs."""


class JobStore(JobQueue, Protocol):
    """A queue whose jobs can also be read, awaited, streamed, cancelled and retried."""

    def has_ready_job(self, endpoint: str) -> bool:
        """Return whether `receive` would lease a job at once."""

    def peek_job(self, endpoint: str) -> Job | None:
        """Return the job that `receive` would lease next; None if no job waits."""

    async def wait_for_job(self, endpoint: str) -> None:
        """Return when a job may be ready; another worker may take it first."""

    def wake_waiter(self, endpoint: str) -> None:
        """Wake one more waiter for the ready job: the one woken before it may not take the job."""

    async def wait_until_idle(self) -> None:
        """Return when no job is in progress."""

    async def get(self, job_id: str) -> Job | None:
        """Return a job as it is now; None if it is not stored."""

    async def wait(self, job_id: str, timeout_s: float) -> Job | None:
        """Return a job when it ends, or as it is after `timeout_s`; None if it is not stored."""

    async def publish(self, job_id: str) -> None:
        """Write a `sync` job to the disk before its id is sent to a client.

        A `sync` job without a webhook is not written otherwise. Raises StoreUnavailable.
        """

    async def save_progress(self, job_id: str, attempt: int, output: Json) -> bool:
        """Store the progress of a running job; False if the attempt is no longer in progress."""

    async def append_chunks(self, job_id: str, attempt: int, values: Sequence[Json]) -> bool:
        """Append to a job's stream; readers see it at once, and it is written to disk soon after.

        Returns False if the attempt is no longer in progress.

        Raises:
            StoreFull: the job, or all jobs together, have streamed as much as the limits allow.
        """

    async def read_chunks(self, job_id: str, after: tuple[int, int], wait_s: float) -> list[Chunk]:
        """Return the chunks after (attempt, number).

        Waits up to `wait_s` for a chunk or for the end of the job.
        """

    async def take_chunks(self, job_id: str, wait_s: float) -> list[Chunk]:
        """Return, in order, the chunks that no earlier call has returned.

        Waits up to `wait_s` for a chunk or for the end of the job.
        """

    async def cancel(self, job_id: str) -> Job | None:
        """End a job unless it has ended, and stop its worker. Raises StoreUnavailable."""

    async def retry(self, job_id: str) -> Job | None:
        """Queue a failed job again under the same id. Raises NotRetryable, StoreUnavailable."""

    async def purge(self, endpoint: str) -> int:
        """Cancel all waiting jobs of an endpoint; return how many. Raises StoreUnavailable."""

    async def reset(self, endpoint: str) -> int:
        """Cancel the jobs of an endpoint that have not ended, remove all, and return how many.

        Jobs that are submitted or retried during the call stay. Durable when this returns.

        Raises:
            StoreUnavailable: the disk refused it. Either no job has changed, or the jobs are
                removed, but they may be stored again after a restart.
        """

    async def remove(self, job_id: str) -> bool:
        """Cancel a job unless it has ended, and remove it; False if it is not stored.

        Durable when this returns. Raises StoreUnavailable, as `reset` does.
        """

    async def receive_stops(self, worker_id: str, wait_s: float) -> list[str]:
        """Return the ids of jobs that this worker must stop; none after `wait_s`.

        Each id is returned once, or twice if the job was leased only a moment before: the worker
        ignores the stop of a job that it has not started.
        """

    def request_stop(self, worker_id: str, job_id: str) -> None:
        """Tell a worker to stop a job; dropped if the job is leased to that worker again first."""

    async def reclaim_jobs(self, worker_id: str, reason: str, job_id: str | None = None) -> int:
        """Take all jobs, or one job, from a worker that is believed gone; return how many.

        Each counts as a lost attempt. If the worker is still alive, it does not learn of it.
        """

    def list_leased_jobs(self, worker_id: str) -> Sequence[Job]:
        """Return the jobs that are leased to a worker."""

    def list_endpoints(self) -> Sequence[str]:
        """Return the endpoints that have jobs or waiting workers."""

    async def list_recent_jobs(
        self, endpoint: str, limit: int, *, with_unpublished: bool = False
    ) -> Sequence[Job]:
        """Return an endpoint's newest jobs, newest first.

        Synchronous jobs are only included `with_unpublished`, until a client has their id.
        """

    async def mark_webhook_sent(self, job_id: str) -> None:
        """Record that a job's webhook was delivered or given up."""


@dataclass(frozen=True, slots=True)
class SavedJob:
    """A job that was read from the disk, with its streamed chunks."""

    job: Job
    chunks: Sequence[Chunk]


class Journal(Protocol):
    """Writes a store's changes to the disk, in their order.

    `save`, `append_chunks` and `delete` never wait and never fail; `flush` reports whether the disk
    accepted them. Owned by the event loop.
    """

    async def load(self) -> Iterable[SavedJob]:
        """Return all saved jobs, oldest first. Raises StoreUnavailable."""

    def save(self, job: Job) -> None:
        """Write the current state of a job, replacing the saved one."""

    def append_chunks(self, job_id: str, chunks: Sequence[Chunk]) -> None:
        """Append to a job's stream."""

    def delete(self, job_id: str) -> None:
        """Delete a job and its stream."""

    async def flush(self) -> None:
        """Return when all earlier changes are on the disk. Raises StoreUnavailable."""

    async def wait_for_capacity(self) -> None:
        """Return when the unwritten changes are below their limit (backpressure)."""

    async def close(self) -> None:
        """Write the remaining changes and stop, within a bounded time."""


class NoJournal:
    """A journal that stores nothing: the jobs are lost when the process ends."""

    async def load(self) -> Iterable[SavedJob]:
        """Return nothing."""
        return ()

    def save(self, job: Job) -> None:
        """Do nothing."""

    def append_chunks(self, job_id: str, chunks: Sequence[Chunk]) -> None:
        """Do nothing."""

    def delete(self, job_id: str) -> None:
        """Do nothing."""

    async def flush(self) -> None:
        """Return at once."""

    async def wait_for_capacity(self) -> None:
        """Return at once."""

    async def close(self) -> None:
        """Do nothing."""
