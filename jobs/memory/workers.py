"""The workers that have jobs, or wait to be told to stop one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from jobs.memory.worker_state import Holder

# What a worker has not asked for in so long it never will: it is gone, or never listens.
STOP_S = 600.0


class Workers:
    """Who holds which job, for as long as there is anything to know of a worker.

    Owned by the store.
    """

    def __init__(self) -> None:
        self._holders: dict[str, Holder] = {}
        # Stops that are told once more, by worker and job, and when; soonest first.
        self._again: dict[tuple[str, str], float] = {}
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
        self._again.pop((worker_id, job_id), None)
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

    def stop_again(self, worker_id: str, job_id: str, when: float) -> None:
        """Have a worker told once more to stop a job, unless it is given that job anew before.

        `when` is no earlier than that of any call before.
        """
        self._again.pop((worker_id, job_id), None)
        self._again[worker_id, job_id] = when

    @property
    def next(self) -> float:
        """When a stop is to be told once more; infinite where none is."""
        return next(iter(self._again.values()), math.inf)

    async def stops(self, worker_id: str, wait_s: float) -> list[str]:
        """Return jobs this worker has to stop, each time it is to be told; none after `wait_s`."""
        holder = self._holder(worker_id)
        try:
            return await holder.stops(wait_s)
        finally:
            self._tidy(worker_id, holder)

    def over(self, now: float) -> None:
        """Tell what is to be told once more by now, and drop what nobody has asked for.

        Workers that are cancelled and killed leave stops.
        """
        while self.next <= now:
            (worker_id, job_id), when = next(iter(self._again.items()))
            del self._again[worker_id, job_id]
            self.stop(worker_id, job_id, when)
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
