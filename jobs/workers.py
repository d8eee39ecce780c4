"""The workers that have jobs, or wait to be told to stop one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobs.holder import Holder

# What a worker has not asked for in so long it never will: it is gone, or never listens.
STOP_S = 600.0


class Workers:
    """Who holds which job, for as long as there is anything to know of a worker.

    Owned by the store.
    """

    def __init__(self) -> None:
        self._holders: dict[str, Holder] = {}
        # Jobs that any of them has.
        self._held = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._holders)

    def hold(self, worker_id: str, job_id: str) -> None:
        """Give a worker a job; an earlier stop of it was of an earlier attempt."""
        holder = self._holder(worker_id)
        holder.held[job_id] = None
        holder.unstop(job_id)
        self._held += 1
        self._idle.clear()

    def release(self, worker_id: str, job_id: str) -> None:
        """Take a job from a worker."""
        holder = self._holders.get(worker_id)
        if holder is None or job_id not in holder.held:
            return
        del holder.held[job_id]
        self._tidy(worker_id, holder)
        self._held -= 1
        if not self._held:
            self._idle.set()

    async def idle(self) -> None:
        """Return when none has a job."""
        await self._idle.wait()

    def held(self, worker_id: str) -> Sequence[str]:
        """Return the ids of the jobs a worker has."""
        holder = self._holders.get(worker_id)
        return list(holder.held) if holder is not None else ()

    def stop(self, worker_id: str, job_id: str, now: float) -> None:
        """Have a worker stop a job that it has."""
        self._holder(worker_id).stop(job_id, now + STOP_S)

    async def stops(self, worker_id: str, wait_s: float) -> list[str]:
        """Return jobs this worker has to stop, each one once; none after `wait_s`."""
        holder = self._holder(worker_id)
        try:
            return await holder.stops(wait_s)
        finally:
            self._tidy(worker_id, holder)

    def expire(self, now: float) -> None:
        """Drop what nobody has asked for: workers that are cancelled and killed leave stops."""
        for worker_id, holder in list(self._holders.items()):
            holder.expire(now)
            self._tidy(worker_id, holder)

    def _holder(self, worker_id: str) -> Holder:
        holder = self._holders.get(worker_id)
        if holder is None:
            holder = self._holders[worker_id] = Holder()
        return holder

    def _tidy(self, worker_id: str, holder: Holder) -> None:
        if holder.idle:
            self._holders.pop(worker_id, None)
