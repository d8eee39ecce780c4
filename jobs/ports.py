"""The ports: what any queue of jobs can do, and what a store of them can besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jobs.model import Job, JobStatus, Json, NewJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """An endpoint's jobs: how many are in each state, and how many were lost or sent again."""

    counts: Mapping[JobStatus, int] = field(default_factory=dict)
    retried: int = 0
    # Of the job that has waited longest; None where none waits.
    oldest_queued_at: float | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One thing a worker has streamed: the attempt it belongs to, its number there from 1, JSON."""

    attempt: int
    number: int
    value: Json


class JobQueue(Protocol):
    """Jobs handed out under a lease, each to one worker at a time.

    A lease is a job in progress: its `id` and `attempt` say which. `ack`, `nack` and `extend` under
    an attempt that is over change nothing and answer False, so a worker that was given up, and is
    not dead, does no harm.

    On SQS a job may be given to two at the same time, its order is about that in which it was sent,
    counts are about right and every lease counts as a loss: `SqsQueue` says what of this is lost.
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
        busy: bool = False,
    ) -> list[Job]:
        """Lease up to `limit` jobs, those first that have waited longest; none after `wait_s`.

        A worker that is `busy` gets none that it has lost: what it says of the run it does not know
        to be lost could not be told from what it says of the new one.
        """

    async def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Let a lease end no earlier than `lease_s` from now."""

    async def ack(
        self, job_id: str, attempt: int, *, output: Json | None = None, error: str | None = None
    ) -> bool:
        """End a job with its output or its error; durable when this returns.

        Raises:
            StoreUnavailable: it has not ended; the lease still holds.
        """

    async def nack(self, job_id: str, attempt: int, reason: str | None = None) -> bool:
        """Give a job back: it waits again, in its old place.

        With a `reason` it counts as lost, and fails when it was lost too often.
        """

    async def dead(self, endpoint: str) -> Sequence[Job]:
        """Return the jobs that were lost too often and are still kept."""

    async def stats(self, endpoint: str) -> Stats:
        """Count an endpoint's jobs."""


class JobStore(JobQueue, Protocol):
    """A queue whose jobs can be looked up, waited for, streamed, taken back and run again."""

    def available(self, endpoint: str) -> bool:
        """Tell whether a job waits that `receive` would give at once."""

    def next_job(self, endpoint: str) -> Job | None:
        """Return the job that `receive` would lease first; None when none waits."""

    async def wait_available(self, endpoint: str) -> None:
        """Return when there may be one."""

    def wake(self, endpoint: str) -> None:
        """Have somebody else look at what waits: whoever was woken for it may not take it."""

    async def idle(self) -> None:
        """Return when no job is in progress."""

    async def get(self, job_id: str) -> Job | None:
        """Return a job as it is now; None when there is none, or no longer."""

    async def wait(self, job_id: str, timeout_s: float) -> Job | None:
        """Return a job when it has ended, or as it is after `timeout_s`; None like `get`."""

    async def publish(self, job_id: str) -> None:
        """Have a `sync` job on disk before its id is told: not before. Raises StoreUnavailable."""

    async def progress(self, job_id: str, attempt: int, output: Json) -> bool:
        """Keep what a worker says of a job that goes on; False when it is over."""

    async def append(self, job_id: str, attempt: int, values: Sequence[Json]) -> bool:
        """Add to a job's stream; live at once, on disk soon after. False when it is over.

        Raises:
            StoreFull: so much was streamed, by it or by all, that no more can be kept.
        """

    async def read(self, job_id: str, after: tuple[int, int], wait_s: float) -> list[Chunk]:
        """Return what was streamed after (attempt, number), waiting for some or for the end."""

    async def drain(self, job_id: str, wait_s: float) -> list[Chunk]:
        """Return what no earlier call has returned, in order, waiting for some or for the end."""

    async def cancel(self, job_id: str) -> Job | None:
        """End a job that has not ended, whoever has it. Raises StoreUnavailable."""

    async def retry(self, job_id: str) -> Job | None:
        """Queue a failed job again under its id. Raises NotRetryable, StoreUnavailable."""

    async def purge(self, endpoint: str) -> int:
        """Cancel all that waits in a queue; return how many. Raises StoreUnavailable."""

    async def stops(self, worker_id: str, wait_s: float) -> list[str]:
        """Return jobs this worker has to stop; none after `wait_s`.

        Each one once, or twice where it had only just been handed out: it may not have begun.
        """

    def stop(self, worker_id: str, job_id: str) -> None:
        """Have a worker stop what it runs of a job, unless it is given that job anew."""

    async def lose(self, worker_id: str, reason: str, only: str | None = None) -> int:
        """Take all that a worker has from it, or one job; return how many.

        It is believed to be gone. Where it is not, it does not know.
        """

    def held(self, worker_id: str) -> Sequence[Job]:
        """Return the jobs a worker has."""

    def endpoints(self) -> Sequence[str]:
        """Return the endpoints that have jobs, or workers that wait for some."""

    async def recent(self, endpoint: str, limit: int) -> Sequence[Job]:
        """Return an endpoint's newest jobs, newest first."""

    async def webhook_sent(self, job_id: str) -> None:
        """Remember that a job's webhook needs no more tries."""
