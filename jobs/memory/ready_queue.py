"""The waiting jobs of one endpoint, in order, and the tasks that wait for a job."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import TypeAlias

from jobs.model import Job

_MIN_COMPACTION_LENGTH = 1_000

_Waiters: TypeAlias = deque[asyncio.Future[None]]
_Heap: TypeAlias = list[tuple[float, int, str]]


class ReadyQueue:
    """Returns the longest-waiting job first, and low-priority jobs after all others.

    Jobs are ordered by the time they were queued, so a job that is returned to the queue gets its
    old place. Removing a job from the middle leaves its heap entry, which is skipped later. Owned
    by the event loop.
    """

    def __init__(self) -> None:
        self._normal: _Heap = []
        self._low_priority: _Heap = []
        # The number of the valid heap entry of each waiting job.
        self._entry_numbers: dict[str, int] = {}
        self._next_number = count()
        # Consumers take a job as soon as they are woken. Observers first have to get ready, which
        # may take long. A new job wakes one of each, so that it does not wait for an observer
        # while a consumer could take it.
        self._consumers: _Waiters = deque()
        self._observers: _Waiters = deque()

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return len(self._entry_numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entry_numbers))

    @property
    def has_waiters(self) -> bool:
        """Whether a task waits for a job."""
        return bool(self._consumers or self._observers)

    def push(self, job: Job) -> None:
        """Add a job."""
        number = next(self._next_number)
        self._entry_numbers[job.id] = number
        heap = self._low_priority if job.policy.low_priority else self._normal
        heapq.heappush(heap, (job.queued_at, number, job.id))
        if len(heap) > 2 * len(self._entry_numbers) + _MIN_COMPACTION_LENGTH:
            # Most entries are of jobs that were removed, for example cancelled, while they waited.
            heap[:] = [item for item in heap if self._entry_numbers.get(item[2]) == item[1]]
            heapq.heapify(heap)
        self.wake_waiter()

    def remove(self, job_id: str) -> None:
        """Remove a job if it waits."""
        self._entry_numbers.pop(job_id, None)

    def pop(self) -> str | None:
        """Remove the next job and return its id; None if no job waits."""
        for heap in (self._normal, self._low_priority):
            while heap:
                _, number, job_id = heapq.heappop(heap)
                if self._entry_numbers.get(job_id) == number:
                    del self._entry_numbers[job_id]
                    return job_id
        return None

    def peek(self) -> str | None:
        """Return the id of the job that `pop` would remove; None if no job waits."""
        for heap in (self._normal, self._low_priority):
            self._drop_stale_head(heap)
            if heap:
                return heap[0][2]
        return None

    def peek_oldest(self) -> str | None:
        """Return the id of the job that has waited longest, whatever its priority."""
        heads = []
        for heap in (self._normal, self._low_priority):
            self._drop_stale_head(heap)
            heads += heap[:1]
        return min(heads)[2] if heads else None

    def _drop_stale_head(self, heap: _Heap) -> None:
        while heap and self._entry_numbers.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)

    def wake_waiter(self) -> None:
        """Wake one consumer and one observer if a job waits."""
        if self._entry_numbers:
            _wake_first(self._consumers)
            _wake_first(self._observers)

    async def wait_as_consumer(self) -> None:
        """Return when a job may be ready.

        The caller must take a job at once. If another task took it first, the caller waits again.
        """
        await self._wait(self._consumers)

    async def wait_as_observer(self) -> None:
        """Return when a job may be ready; the caller may take it later or not at all."""
        await self._wait(self._observers)

    async def _wait(self, waiters: _Waiters) -> None:
        if self._entry_numbers:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                # Woken and cancelled in the same iteration of the loop: pass the wake-up on.
                _wake_first(waiters)
            elif waiter in waiters:
                # `_wake_first` has already removed it if a job came after the cancellation.
                waiters.remove(waiter)
            raise


def _wake_first(waiters: _Waiters) -> None:
    while waiters:
        waiter = waiters.popleft()
        if not waiter.done():
            waiter.set_result(None)
            return
