"""The jobs of one endpoint that wait, in order, and the workers that wait for them."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import TypeAlias

from jobs.model import Job

_LEAST = 1_000

_Waiters: TypeAlias = deque[asyncio.Future[None]]
_Heap: TypeAlias = list[tuple[float, int, str]]


class JobLine:
    """Hands out what has waited longest; low priority after all others.

    A job that comes back keeps its place, since it is the time it was queued that counts. Taking a
    job out of the middle only marks it: it is skipped when its turn comes. Owned by the event loop.
    """

    def __init__(self) -> None:
        self._first: _Heap = []
        self._low: _Heap = []
        self._waiting: dict[str, int] = {}
        self._order = count()
        # Those that take a job as soon as they are woken, and those that still have to get ready
        # and may be long about it: a job that wakes one of these must not be lost to the others.
        self._takers: _Waiters = deque()
        self._watchers: _Waiters = deque()

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._waiting))

    @property
    def watched(self) -> bool:
        """Whether anybody waits for a job."""
        return bool(self._takers or self._watchers)

    def push(self, job: Job) -> None:
        """Let a job wait."""
        number = next(self._order)
        self._waiting[job.id] = number
        heap = self._low if job.policy.low_priority else self._first
        heapq.heappush(heap, (job.queued_at, number, job.id))
        if len(heap) > 2 * len(self._waiting) + _LEAST:
            # Mostly jobs that were taken back before their turn.
            heap[:] = [item for item in heap if self._waiting.get(item[2]) == item[1]]
            heapq.heapify(heap)
        self.wake()

    def remove(self, job_id: str) -> None:
        """Take a job out, if it waits."""
        self._waiting.pop(job_id, None)

    def pop(self) -> str | None:
        """Take the next one out; None when none waits."""
        for heap in (self._first, self._low):
            while heap:
                _, number, job_id = heapq.heappop(heap)
                if self._waiting.get(job_id) == number:
                    del self._waiting[job_id]
                    return job_id
        return None

    def first(self) -> str | None:
        """Return the one that `pop` would take out, and leave it there; None when none waits."""
        for heap in (self._first, self._low):
            while heap and self._waiting.get(heap[0][2]) != heap[0][1]:
                heapq.heappop(heap)
            if heap:
                return heap[0][2]
        return None

    def oldest(self) -> str | None:
        """Return the one that has waited longest, and leave it there."""
        heads = []
        for heap in (self._first, self._low):
            while heap and self._waiting.get(heap[0][2]) != heap[0][1]:
                heapq.heappop(heap)
            heads += heap[:1]
        return min(heads)[2] if heads else None

    def wake(self) -> None:
        """Have one of those who wait look at what is there, if there is anything."""
        if self._waiting:
            _wake_one(self._takers)
            _wake_one(self._watchers)

    async def wait(self) -> None:
        """Return when a job may be there, to take it at once; whoever finds it gone waits again."""
        await self._wait(self._takers)

    async def watch(self) -> None:
        """Return when a job may be there, and leave it to whoever is quicker."""
        await self._wait(self._watchers)

    async def _wait(self, waiters: _Waiters) -> None:
        if self._waiting:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                # Woken and cancelled in one turn of the loop: the wake-up is another's.
                _wake_one(waiters)
            elif waiter in waiters:
                # It is not, where a job came after it was cancelled and before it got here.
                waiters.remove(waiter)
            raise


def _wake_one(waiters: _Waiters) -> None:
    while waiters:
        waiter = waiters.popleft()
        if not waiter.done():
            waiter.set_result(None)
            return
