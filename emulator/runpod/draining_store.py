"""The job store as the routes use it: long polls end when the server shuts down."""

from __future__ import annotations

import asyncio
from enum import Enum

from emulator.http.shutdown_state import ShutdownState
from jobs import Job, JobStatus, JobStore
from jobs.forwarding_store import ForwardingJobStore

# A wait this short does not delay the shutdown.
_SHORT_WAIT_S = 0.25


class _Cut(Enum):
    """The result of a wait that the shutdown has ended; None stands for a job that is gone."""

    CUT = "cut"


class DrainingStore(ForwardingJobStore):
    """A job store whose waits end early during a shutdown. Everything else is forwarded.

    A worker that waits for jobs gets none. A client that waits for a queued job gets its current
    state; a client that waits for a running job waits until the job ends or the drain deadline
    passes.
    """

    def __init__(self, store: JobStore, shutdown: ShutdownState) -> None:
        super().__init__(store)
        self._shutdown = shutdown

    def has_ready_job(self, endpoint: str) -> bool:
        """Return whether a job is available; False while the server drains."""
        return not self._shutdown.draining.is_set() and self._store.has_ready_job(endpoint)

    async def wait_for_job(self, endpoint: str) -> None:
        """Return when a job may be available, or when the server drains."""
        await self._shutdown.wait_until_draining(self._store.wait_for_job(endpoint), None)

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
        """Lease jobs; none while the server drains."""
        if self._shutdown.draining.is_set():
            return []
        leased = self._store.receive(
            endpoint, worker_id, lease_s=lease_s, wait_s=wait_s, limit=limit, skip_lost=skip_lost
        )
        return await self._shutdown.wait_until_draining(leased, [])

    async def wait(self, job_id: str, timeout_s: float) -> Job | None:
        """Return a job when it has ended, or its current state if waiting longer is no use."""
        if timeout_s <= _SHORT_WAIT_S:
            return await self._store.wait(job_id, timeout_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        ended = await self._shutdown.wait_until_draining(
            self._store.wait(job_id, timeout_s), _Cut.CUT
        )
        if ended is not _Cut.CUT:
            return ended
        job = await self._store.get(job_id)
        if job is None or job.status is not JobStatus.IN_PROGRESS:
            return job
        left_s = max(0.0, deadline - asyncio.get_running_loop().time())
        ended = await self._shutdown.wait_until_deadline(self._store.wait(job_id, left_s), _Cut.CUT)
        return await self._store.get(job_id) if ended is _Cut.CUT else ended
