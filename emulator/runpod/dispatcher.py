"""When a worker that asks for jobs gets which."""

from __future__ import annotations

import asyncio

from emulator.runpod.remote_worker import Worker
from jobs import Job, JobStore

# So young is a call for jobs that its worker was not told to end since: the SDK's own run loop
# needs as long to notice.
_FRESH_S = 0.1
# How often a held call looks at what nothing wakes it for.
_STEP_S = 0.25
# Inputs in one answer; the jobs beyond come with the next.
_BATCH_BYTES = 50_000_000


class Handout:
    """Leases jobs to workers in such a way that a worker's end or death costs none of them.

    An SDK worker that was told to end makes no new call for jobs, but still has one open, and what
    it is given by that it never runs. So a job that turns up while a call is held only ends the
    call, and is for the next one, which a worker that goes on makes in the same breath.
    """

    def __init__(self, store: JobStore, *, hold_s: float, lease_s: float) -> None:
        self._store = store
        self._hold_s = hold_s
        self._lease_s = lease_s

    async def next(self, worker: Worker, limit: int, *, busy: bool = False) -> list[Job]:
        """Lease up to `limit` jobs; where none waits, return when one may, or after `hold_s`.

        A worker that is `busy` says that it runs some already.
        """
        endpoint = worker.endpoint
        loop = asyncio.get_running_loop()
        began = loop.time()
        if not self._store.has_ready_job(endpoint):
            await self._turn_up(endpoint)
            if loop.time() - began > _FRESH_S:
                # Should this worker not come back for it in a moment, it is somebody else's.
                loop.call_later(_FRESH_S, self._store.wake_waiter, endpoint)
                return []
            if not self._store.has_ready_job(endpoint):
                return []
        await worker.listens()
        leased: list[Job] = []
        room = _BATCH_BYTES
        while len(leased) < limit and room > 0:
            jobs = await self._store.receive(
                endpoint, worker.key, lease_s=self._lease_s, skip_lost=busy
            )
            if not jobs:
                break
            leased += jobs
            room -= sum(job.size for job in jobs)
        if not leased and self._store.has_ready_job(endpoint):
            # None of them is for this worker, which asks again as soon as it is told so.
            await asyncio.sleep(_STEP_S)
        return leased

    async def _turn_up(self, endpoint: str) -> None:
        """Wait until a job may be there, but no longer than a call is held."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._hold_s
        while (left_s := deadline - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(_STEP_S, left_s)):
                    await self._store.wait_for_job(endpoint)
                return
            except TimeoutError:
                # Whoever was woken for it may be busy, as the local worker without a slot is.
                if self._store.has_ready_job(endpoint):
                    return
