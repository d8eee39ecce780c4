"""A job store in memory, with a journal that makes the jobs survive the process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from jobs.memory.consumer import ConsumerOperations
from jobs.memory.producer import ProducerOperations
from jobs.memory.recovery import recover_jobs
from jobs.memory.state import StoreState
from jobs.model import Job, JobStatus, Json, Limits, NewJob
from jobs.ports import Chunk, Journal, NoJournal, QueueStats

logger = logging.getLogger(__name__)

# Precision of leases, time limits and retention.
TICK_S = 0.1

T = TypeVar("T")
_Async: TypeAlias = Coroutine[Any, Any, T]


class MemoryJobStore:
    """Implements `JobStore` with all jobs in memory.

    Reads never touch the disk. A change of status becomes visible only after the journal has
    written it, and until then the job cannot change in another way. A `/runsync` job whose id no
    client has received is not written at all. Leases, chunks and progress are written in the
    background: losing them repeats an attempt, but never loses a job or produces a second result.

    Owned by one event loop; not thread-safe. `on_ended` is called with each job that has ended,
    after its end is durable. `on_started` is called with each job when it is leased to a worker.

    The operations are in `ProducerOperations` and `ConsumerOperations`, over one `StoreState`. The
    methods below return the coroutines of those operations instead of awaiting them, which spares
    a coroutine per call.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        journal: Journal | None = None,
        *,
        on_ended: Callable[[Job], object] = lambda job: None,
        on_started: Callable[[Job], object] = lambda job: None,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = StoreState(
            limits or Limits(),
            journal or NoJournal(),
            on_ended=on_ended,
            on_started=on_started,
            now=now,
            monotonic=monotonic,
        )
        self._producer = ProducerOperations(self._state)
        self._consumer = ConsumerOperations(self._state)
        self._expiry_task: asyncio.Task[None] | None = None

    # -- lifecycle ------------------------------------------------------------------------------

    async def start(
        self,
        may_have_survived: Callable[[str], bool] = lambda worker_id: False,
        lease_s: float = 30.0,
    ) -> None:
        """Recover the jobs from the journal and start to enforce leases and limits.

        A job that was in progress keeps its worker, with a new lease of `lease_s`, if
        `may_have_survived` returns True for the worker. Otherwise the attempt counts as lost.
        Raises StoreUnavailable.
        """
        try:
            await recover_jobs(self._state, may_have_survived, lease_s)
        except BaseException:
            # Otherwise the store process would keep the database locked.
            await self._state.journal.close()
            raise
        self._expiry_task = asyncio.create_task(self._sweep_forever())

    async def close(self) -> None:
        """Stop enforcing limits, and write the remaining changes."""
        if self._expiry_task is not None:
            self._expiry_task.cancel()
            await asyncio.gather(self._expiry_task, return_exceptions=True)
        await self._state.journal.close()
        await self._state.transitions.wait_until_finished()

    async def sweep(self) -> None:
        """Handle all expired leases and limits. Raises StoreUnavailable."""
        await self._state.transitions.apply(self._process_due())

    def _process_due(self) -> list[Job]:
        return self._state.expiry.process_due(self._state.leases.reclaim)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self._state.expiry.wait_until_due()
            try:
                # Not awaited: a disk that hangs must not delay the expiry of other leases.
                task = self._state.transitions.start(self._process_due())
            except Exception:
                logger.exception("the sweep for expired jobs failed; it continues")
                continue
            if task is not None:
                task.add_done_callback(_log_failure)

    # -- clients --------------------------------------------------------------------------------

    def enqueue(self, new: NewJob) -> _Async[Job]:
        """Accept a job."""
        return self._producer.enqueue(new)

    def publish(self, job_id: str) -> _Async[None]:
        """Write a `sync` job to the disk before its id is sent."""
        return self._producer.publish(job_id)

    def get(self, job_id: str) -> _Async[Job | None]:
        """Return a job as it is now."""
        return self._producer.get(job_id)

    def wait(self, job_id: str, timeout_s: float) -> _Async[Job | None]:
        """Wait for the end of a job."""
        return self._producer.wait(job_id, timeout_s)

    def cancel(self, job_id: str) -> _Async[Job | None]:
        """Cancel a job."""
        return self._producer.cancel(job_id)

    def retry(self, job_id: str) -> _Async[Job | None]:
        """Queue a failed job again."""
        return self._producer.retry(job_id)

    def purge(self, endpoint: str) -> _Async[int]:
        """Cancel all waiting jobs of an endpoint."""
        return self._producer.purge(endpoint)

    def reset(self, endpoint: str) -> _Async[int]:
        """Cancel and remove all jobs of an endpoint."""
        return self._producer.reset(endpoint)

    def stats(self, endpoint: str) -> _Async[QueueStats]:
        """Count an endpoint's jobs."""
        return self._producer.stats(endpoint)

    def oldest_queued_at(self, endpoint: str) -> float | None:
        """Return when the longest-waiting job was queued; None if no job waits."""
        return self._producer.oldest_queued_at(endpoint)

    def count_by_status(self) -> Mapping[JobStatus, int]:
        """Count the jobs of all endpoints."""
        return self._producer.count_by_status()

    def list_endpoints(self) -> Sequence[str]:
        """Return the endpoints that have jobs or waiting workers."""
        return self._producer.list_endpoints()

    def list_recent_jobs(self, endpoint: str, limit: int) -> _Async[Sequence[Job]]:
        """Return an endpoint's newest published jobs, newest first."""
        return self._producer.list_recent_jobs(endpoint, limit)

    def list_dead_letters(self, endpoint: str) -> _Async[Sequence[Job]]:
        """Return the jobs that failed because they were lost too often."""
        return self._producer.list_dead_letters(endpoint)

    def mark_webhook_sent(self, job_id: str) -> _Async[None]:
        """Record that a job's webhook was delivered or given up."""
        return self._producer.mark_webhook_sent(job_id)

    # -- workers --------------------------------------------------------------------------------

    def has_ready_job(self, endpoint: str) -> bool:
        """Return whether `receive` would lease a job at once."""
        return self._consumer.has_ready_job(endpoint)

    def peek_job(self, endpoint: str) -> Job | None:
        """Return the job that `receive` would lease next."""
        return self._consumer.peek_job(endpoint)

    def wait_for_job(self, endpoint: str) -> _Async[None]:
        """Wait until a job may be ready."""
        return self._consumer.wait_for_job(endpoint)

    def wake_waiter(self, endpoint: str) -> None:
        """Wake one more waiter for a ready job."""
        self._consumer.wake_waiter(endpoint)

    def receive(
        self,
        endpoint: str,
        worker_id: str,
        *,
        lease_s: float,
        wait_s: float = 0.0,
        limit: int = 1,
        skip_lost: bool = False,
    ) -> _Async[list[Job]]:
        """Lease jobs to a worker."""
        return self._consumer.receive(
            endpoint, worker_id, lease_s=lease_s, wait_s=wait_s, limit=limit, skip_lost=skip_lost
        )

    def extend(self, job_id: str, attempt: int, lease_s: float) -> _Async[bool]:
        """Extend a lease."""
        return self._consumer.extend(job_id, attempt, lease_s)

    def ack(
        self, job_id: str, attempt: int, *, output: Json | None = None, error: str | None = None
    ) -> _Async[bool]:
        """End a job with its output or its error."""
        return self._consumer.ack(job_id, attempt, output=output, error=error)

    def nack(self, job_id: str, attempt: int, reason: str | None = None) -> _Async[bool]:
        """Return a job to the queue."""
        return self._consumer.nack(job_id, attempt, reason)

    def reclaim_jobs(self, worker_id: str, reason: str, job_id: str | None = None) -> _Async[int]:
        """Take the jobs of a worker that is believed gone."""
        return self._consumer.reclaim_jobs(worker_id, reason, job_id)

    def list_leased_jobs(self, worker_id: str) -> Sequence[Job]:
        """Return the jobs that are leased to a worker."""
        return self._consumer.list_leased_jobs(worker_id)

    def receive_stops(self, worker_id: str, wait_s: float) -> _Async[list[str]]:
        """Wait for jobs that a worker must stop."""
        return self._consumer.receive_stops(worker_id, wait_s)

    def request_stop(self, worker_id: str, job_id: str) -> None:
        """Tell a worker to stop a job."""
        self._consumer.request_stop(worker_id, job_id)

    def wait_until_idle(self) -> _Async[None]:
        """Wait until no job is in progress."""
        return self._consumer.wait_until_idle()

    def save_progress(self, job_id: str, attempt: int, output: Json) -> _Async[bool]:
        """Store the progress of a running job."""
        return self._consumer.save_progress(job_id, attempt, output)

    def append_chunks(self, job_id: str, attempt: int, values: Sequence[Json]) -> _Async[bool]:
        """Append to a job's stream."""
        return self._consumer.append_chunks(job_id, attempt, values)

    def read_chunks(
        self, job_id: str, after: tuple[int, int], wait_s: float
    ) -> _Async[list[Chunk]]:
        """Return the chunks after a position, waiting for some."""
        return self._consumer.read_chunks(job_id, after, wait_s)

    def take_chunks(self, job_id: str, wait_s: float) -> _Async[list[Chunk]]:
        """Return the chunks that no earlier call has returned, waiting for some."""
        return self._consumer.take_chunks(job_id, wait_s)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("jobs could not be ended in time: %s", error)
