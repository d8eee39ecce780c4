"""Decides which jobs a worker that calls for jobs gets, and when."""

from __future__ import annotations

import asyncio

from emulator.http.shutdown_state import ShutdownState
from emulator.runpod.remote_worker import RemoteWorker
from jobs import Job, JobStore

# A job-take call that started less than this ago comes from a worker that has not been asked to
# stop: the SDK's own run loop needs at least this long to notice.
_SHUTDOWN_NOTICE_S = 0.1
# The interval at which a held call checks conditions that no event signals.
_CHECK_INTERVAL_S = 0.25
# The maximum size of the inputs in one response; the next call returns the other jobs.
_MAX_RESPONSE_BYTES = 50_000_000


class JobDispatcher:
    """Leases jobs to workers so that no job is lost when a worker shuts down or dies.

    An SDK worker that is asked to stop makes no new job-take call, but still has one open, and it
    never runs the jobs that this call returns. Therefore a job that arrives during a held call only
    ends the call, with no jobs. A live worker polls again immediately, and gets the job then. While
    the server drains, no worker gets a job.
    """

    def __init__(
        self, store: JobStore, shutdown: ShutdownState, *, hold_s: float, lease_s: float
    ) -> None:
        self._store = store
        self._shutdown = shutdown
        self._hold_s = hold_s
        self._lease_s = lease_s

    async def lease_jobs(
        self, worker: RemoteWorker, limit: int, *, is_busy: bool = False
    ) -> list[Job]:
        """Lease up to `limit` jobs to a worker.

        If no job is ready, return none when one arrives, or after `hold_s`. A paused worker gets
        none. `is_busy` means that the worker reports other running jobs.
        """
        endpoint = worker.endpoint
        if worker.is_paused:
            await worker.wait_until_resumed(self._hold_s)
            return []
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        if not self._has_ready_job(endpoint):
            await self._wait_for_job(endpoint)
            if loop.time() - started_at > _SHUTDOWN_NOTICE_S:
                # If this worker does not poll again in a moment, another one gets the job.
                loop.call_later(_SHUTDOWN_NOTICE_S, self._store.wake_waiter, endpoint)
                return []
            if not self._has_ready_job(endpoint):
                return []
        await worker.wait_for_stop_poll()
        if worker.is_paused:
            self._store.wake_waiter(endpoint)
            return []
        leased: list[Job] = []
        remaining_bytes = _MAX_RESPONSE_BYTES
        while len(leased) < limit and remaining_bytes > 0 and not self._shutdown.draining.is_set():
            jobs = await self._store.receive(
                endpoint, worker.key, lease_s=self._lease_s, skip_lost=is_busy
            )
            if not jobs:
                break
            worker.has_taken_jobs = True
            leased += jobs
            remaining_bytes -= sum(job.size for job in jobs)
        if not leased and self._has_ready_job(endpoint):
            # The ready jobs are not for this worker, which polls again as soon as this returns.
            await asyncio.sleep(_CHECK_INTERVAL_S)
        return leased

    def _has_ready_job(self, endpoint: str) -> bool:
        return not self._shutdown.draining.is_set() and self._store.has_ready_job(endpoint)

    async def _wait_for_job(self, endpoint: str) -> None:
        """Wait until a job may be ready, for at most `hold_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._hold_s
        while (remaining_s := deadline - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(_CHECK_INTERVAL_S, remaining_s)):
                    waiting = self._store.wait_for_job(endpoint)
                    await self._shutdown.wait_until_draining(waiting, None)
                return
            except TimeoutError:
                # The waiter that was woken for the job may be busy, such as a local worker that
                # has no slot.
                if self._has_ready_job(endpoint):
                    return
