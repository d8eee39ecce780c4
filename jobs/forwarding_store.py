"""A job store that forwards every call to another one, as a base class for wrappers."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.model import Job, Json, NewJob
from jobs.ports import Chunk, JobStore, QueueStats


class ForwardingJobStore(JobStore):
    """Forwards every call to `store`; see JobStore for the methods."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    async def enqueue(self, new: NewJob) -> Job:
        return await self._store.enqueue(new)

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
        return await self._store.receive(
            endpoint, worker_id, lease_s=lease_s, wait_s=wait_s, limit=limit, skip_lost=skip_lost
        )

    async def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        return await self._store.extend(job_id, attempt, lease_s)

    async def ack(
        self, job_id: str, attempt: int, *, output: Json | None = None, error: str | None = None
    ) -> bool:
        return await self._store.ack(job_id, attempt, output=output, error=error)

    async def nack(self, job_id: str, attempt: int, reason: str | None = None) -> bool:
        return await self._store.nack(job_id, attempt, reason)

    async def list_dead_letters(self, endpoint: str) -> Sequence[Job]:
        return await self._store.list_dead_letters(endpoint)

    async def stats(self, endpoint: str) -> QueueStats:
        return await self._store.stats(endpoint)

    def has_ready_job(self, endpoint: str) -> bool:
        return self._store.has_ready_job(endpoint)

    def peek_job(self, endpoint: str) -> Job | None:
        return self._store.peek_job(endpoint)

    async def wait_for_job(self, endpoint: str) -> None:
        await self._store.wait_for_job(endpoint)

    def wake_waiter(self, endpoint: str) -> None:
        self._store.wake_waiter(endpoint)

    async def wait_until_idle(self) -> None:
        await self._store.wait_until_idle()

    async def get(self, job_id: str) -> Job | None:
        return await self._store.get(job_id)

    async def wait(self, job_id: str, timeout_s: float) -> Job | None:
        return await self._store.wait(job_id, timeout_s)

    async def publish(self, job_id: str) -> None:
        await self._store.publish(job_id)

    async def save_progress(self, job_id: str, attempt: int, output: Json) -> bool:
        return await self._store.save_progress(job_id, attempt, output)

    async def append_chunks(self, job_id: str, attempt: int, values: Sequence[Json]) -> bool:
        return await self._store.append_chunks(job_id, attempt, values)

    async def read_chunks(self, job_id: str, after: tuple[int, int], wait_s: float) -> list[Chunk]:
        return await self._store.read_chunks(job_id, after, wait_s)

    async def take_chunks(self, job_id: str, wait_s: float) -> list[Chunk]:
        return await self._store.take_chunks(job_id, wait_s)

    async def cancel(self, job_id: str) -> Job | None:
        return await self._store.cancel(job_id)

    async def retry(self, job_id: str) -> Job | None:
        return await self._store.retry(job_id)

    async def purge(self, endpoint: str) -> int:
        return await self._store.purge(endpoint)

    async def reset(self, endpoint: str) -> int:
        return await self._store.reset(endpoint)

    async def receive_stops(self, worker_id: str, wait_s: float) -> list[str]:
        return await self._store.receive_stops(worker_id, wait_s)

    def request_stop(self, worker_id: str, job_id: str) -> None:
        self._store.request_stop(worker_id, job_id)

    async def reclaim_jobs(self, worker_id: str, reason: str, job_id: str | None = None) -> int:
        return await self._store.reclaim_jobs(worker_id, reason, job_id)

    def list_leased_jobs(self, worker_id: str) -> Sequence[Job]:
        return self._store.list_leased_jobs(worker_id)

    def list_endpoints(self) -> Sequence[str]:
        return self._store.list_endpoints()

    async def list_recent_jobs(self, endpoint: str, limit: int) -> Sequence[Job]:
        return await self._store.list_recent_jobs(endpoint, limit)

    async def mark_webhook_sent(self, job_id: str) -> None:
        await self._store.mark_webhook_sent(job_id)
