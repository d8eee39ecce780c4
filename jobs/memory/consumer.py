"""Operations of the workers of a store: receive, stream, end and return jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from common.failpoints import failpoint
from jobs.errors import StoreFull
from jobs.memory.memory_size import chunks_memory_bytes, copy_exactly
from jobs.memory.state import StoreState
from jobs.model import Job, JobStatus, Json
from jobs.ports import Chunk


class ConsumerOperations:
    """The operations of `JobStore` for workers; the protocol documents their contracts."""

    def __init__(self, state: StoreState) -> None:
        self._state = state
        self._table = state.table
        self._leases = state.leases
        self._workers = state.workers
        self._monotonic = state.monotonic

    def has_ready_job(self, endpoint: str) -> bool:
        """Return whether `receive` would lease a job at once."""
        known = self._table.find_endpoint(endpoint)
        return known is not None and len(known.queue) > 0

    def peek_job(self, endpoint: str) -> Job | None:
        """Return the job that `receive` would lease next; None if no job waits."""
        known = self._table.find_endpoint(endpoint)
        job_id = known.queue.peek() if known is not None else None
        return self._table.get(job_id).job if job_id is not None else None

    async def wait_for_job(self, endpoint: str) -> None:
        """Return when a job may be ready; another worker may take it first."""
        try:
            await self._table.get_or_create_endpoint(endpoint).queue.wait_as_observer()
        finally:
            self._table.drop_endpoint_if_idle(endpoint)

    def wake_waiter(self, endpoint: str) -> None:
        """Wake one more waiter for the ready job: the one woken before it may not take the job."""
        known = self._table.find_endpoint(endpoint)
        if known is not None:
            known.queue.wake_waiter()

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
        """Lease up to `limit` jobs, the longest-waiting first; return none after `wait_s`."""
        if wait_s > 0 and not self.has_ready_job(endpoint):
            try:
                async with asyncio.timeout(wait_s):
                    while not self.has_ready_job(endpoint):
                        await self._table.get_or_create_endpoint(endpoint).queue.wait_as_consumer()
            except TimeoutError:
                # Continue: a job may have come in the same iteration of the loop.
                pass
            finally:
                self._table.drop_endpoint_if_idle(endpoint)
        leased: list[Job] = []
        skipped: list[str] = []
        known = self._table.find_endpoint(endpoint)
        while known and len(leased) < limit and (job_id := known.queue.pop()) is not None:
            if skip_lost and self._leases.may_still_run(job_id, worker_id):
                skipped.append(job_id)
            else:
                job = self._leases.grant(job_id, worker_id, lease_s)
                self._state.on_started(job)
                leased.append(job)
        if known:
            for job_id in skipped:
                known.queue.push(self._table.get(job_id).job)
        return leased

    async def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Extend a lease so that it expires no earlier than `lease_s` from now."""
        return self._leases.extend(job_id, attempt, lease_s)

    async def ack(
        self, job_id: str, attempt: int, *, output: Json | None = None, error: str | None = None
    ) -> bool:
        """End a job with its output or its error; durable when this returns.

        Raises:
            StoreUnavailable: the job has not ended, and the lease is still valid.
        """
        while (record := self._leases.find(job_id, attempt)) is not None and record.transition:
            # A repeated ack must not be answered before the first one is durable.
            await asyncio.wait({record.transition})
        if record is None:
            return False
        status = JobStatus.COMPLETED if error is None else JobStatus.FAILED
        failpoint("ack")
        ended_at = self._state.now()
        ended = record.job.replace(
            status=status,
            ended_at=ended_at,
            output=None if output is None else copy_exactly(output),
            error=error,
        )
        await self._state.transitions.apply([ended])
        return True

    async def nack(self, job_id: str, attempt: int, reason: str | None = None) -> bool:
        """Return a job to its old place in the queue; with a `reason` it counts as lost."""
        record = self._leases.find(job_id, attempt)
        if record is None or record.transition is not None:
            return False
        await self._state.transitions.apply(self._leases.requeue_or_fail(record, reason))
        return True

    async def reclaim_jobs(self, worker_id: str, reason: str, job_id: str | None = None) -> int:
        """Take all jobs, or one job, from a worker that is believed gone; return how many."""
        failpoint("losing")
        failed: list[Job] = []
        count = 0
        for leased_id in self._workers.list_leased_job_ids(worker_id):
            if job_id not in (None, leased_id):
                continue
            record = self._table.find(leased_id)
            if record is not None and record.transition is None:
                failed += self._leases.reclaim(record, reason)
                count += 1
        await self._state.transitions.apply(failed)
        return count

    def list_leased_jobs(self, worker_id: str) -> Sequence[Job]:
        """Return the jobs that are leased to a worker."""
        records = map(self._table.find, self._workers.list_leased_job_ids(worker_id))
        return [record.job for record in records if record is not None]

    async def receive_stops(self, worker_id: str, wait_s: float) -> list[str]:
        """Return the ids of jobs that this worker must stop; none after `wait_s`."""
        return await self._workers.receive_stops(worker_id, wait_s)

    def request_stop(self, worker_id: str, job_id: str) -> None:
        """Tell a worker to stop a job; dropped if the job is leased to that worker again first."""
        self._workers.request_stop(worker_id, job_id, self._monotonic())

    async def wait_until_idle(self) -> None:
        """Return when no job is in progress."""
        await self._workers.wait_until_idle()

    async def save_progress(self, job_id: str, attempt: int, output: Json) -> bool:
        """Store the progress of a running job; False if the attempt is no longer in progress."""
        record = self._leases.find(job_id, attempt)
        if record is None or record.transition is not None:
            return False
        self._table.set_job(record, record.job.replace(progress=copy_exactly(output)))
        self._table.save(record, record.job)
        failpoint("progress")
        return True

    async def append_chunks(self, job_id: str, attempt: int, values: Sequence[Json]) -> bool:
        """Append to a job's stream; False if the attempt is no longer in progress.

        Waits while the journal has too much to write. Raises StoreFull.
        """
        record = self._leases.find(job_id, attempt)
        if record is None or record.transition is not None:
            return False
        size_bytes = sum(map(len, values))
        max_bytes = self._state.limits.max_stream_bytes
        if record.stream_bytes + size_bytes > max_bytes:
            raise StoreFull(f"a job may stream {max_bytes:,} bytes, this one has more")
        memory_bytes = chunks_memory_bytes(size_bytes, len(values))
        self._table.make_room(memory_bytes)
        self._table.add_stream_bytes(memory_bytes)
        chunks = record.append_chunks(values)
        if not record.is_unpublished:
            self._state.journal.append_chunks(job_id, chunks)
        failpoint("appended")
        await self._state.journal.wait_for_capacity()
        return True

    async def read_chunks(self, job_id: str, after: tuple[int, int], wait_s: float) -> list[Chunk]:
        """Return the chunks after (attempt, number), waiting for one or for the end of the job."""
        deadline = self._monotonic() + wait_s
        record = self._table.find(job_id)
        while record is not None:
            if chunks := record.chunks_after(after):
                return chunks
            if record.job.status.is_final or self._table.find(job_id) is not record:
                break
            if not await record.wait_for_change(deadline - self._monotonic()):
                break
        return []

    async def take_chunks(self, job_id: str, wait_s: float) -> list[Chunk]:
        """Return the chunks that no earlier call has returned, waiting as `read_chunks` does."""
        record = self._table.find(job_id)
        if record is None:
            return []
        await self.read_chunks(job_id, record.taken_until, wait_s)
        # Read again: another caller may have taken the chunks during the wait.
        chunks = record.chunks_after(record.taken_until)
        if chunks:
            record.taken_until = (chunks[-1].attempt, chunks[-1].number)
        return chunks
