"""Grants an engine's slots to requests, by priority."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from engine.errors import QueueFull
from engine.request import Priority


class _Waiter(NamedTuple):
    """A waiting request; ordered by `rank` and then by arrival."""

    rank: Priority
    arrival: int
    granted: asyncio.Future[None]
    exclusive: bool
    priority: Priority


class Admission:
    """Grants slots by priority, and in order of arrival within a priority.

    `max_queue` limits how many interactive requests wait. Jobs and batches are not limited: they
    wait in queues of their own, whose workers bring at most as many here as there are slots. If
    they were refused, a job that was accepted long ago would fail because of a burst of requests.

    An exclusive request waits until no slot is held, and no other slot is granted until its
    release. Later requests wait behind it, whatever their priority: otherwise a few overlapping
    requests could block it, and the queue that it came from, without end.

    A slot is held from admission until the backend's run has returned, so a run that is still
    stopping after an abort keeps its slot. Owned by the event loop: every method is called on it,
    and nothing here is thread-safe.
    """

    def __init__(self, slots: int, max_queue: int) -> None:
        self._slots = slots
        self._max_queue = max_queue
        self._used = 0
        self._is_exclusive = False
        self._order = count()
        self._waiters: list[_Waiter] = []

    @property
    def slots(self) -> int:
        """How many requests may run at once."""
        return self._slots

    @property
    def running(self) -> int:
        """How many slots are held."""
        return self._used

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return len(self._waiters)

    def has_free_slot(self) -> bool:
        """Return whether a new request would get a slot without waiting."""
        return self._used < self._slots and not self._waiters and not self._is_exclusive

    def try_acquire(self) -> bool:
        """Take a slot if one is free; the caller must then call `release` once."""
        has_slot = self.has_free_slot()
        self._used += has_slot
        return has_slot

    async def acquire(
        self, priority: Priority, deadline: float | None = None, *, exclusive: bool = False
    ) -> None:
        """Wait for a slot until `deadline` on the loop's clock; the caller must `release` it once.

        An exclusive slot is granted when no other is held; until its release no other is granted.

        Raises:
            QueueFull: the request is interactive, and `max_queue` of them wait already.
            TimeoutError: no slot was free by the deadline.
        """
        if not exclusive and self.try_acquire():
            return
        if priority is Priority.INTERACTIVE:
            ahead = sum(each.priority is Priority.INTERACTIVE for each in self._waiters)
            if ahead >= self._max_queue:
                raise QueueFull(
                    f"{ahead} requests are waiting already, the most that may", retry_after_s=1
                )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        rank = Priority.INTERACTIVE if exclusive else priority
        waiter = _Waiter(rank, next(self._order), future, exclusive, priority)
        heapq.heappush(self._waiters, waiter)
        if self._used < self._slots:
            # Slots are free, so this request or the first waiter is exclusive.
            self._grant()
        # Takes a third of the time of `asyncio.timeout`: on a full engine every request waits here.
        timer = None if deadline is None else loop.call_at(deadline, self._time_out, waiter)
        try:
            await future
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._remove(waiter)
            elif not future.cancelled() and future.exception() is None:
                # The slot was granted in the same iteration of the loop as the cancellation.
                self.release()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _time_out(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._remove(waiter)
            if not waiter.granted.done():
                waiter.granted.set_exception(TimeoutError())

    def _remove(self, waiter: _Waiter) -> None:
        self._waiters.remove(waiter)
        heapq.heapify(self._waiters)
        if waiter.exclusive:
            # Other requests may have waited behind it although slots were free.
            self._grant()

    def release(self) -> None:
        """Return a slot, which the next waiter gets."""
        self._used -= 1
        if not self._used:
            self._is_exclusive = False
        self._grant()

    def resize(self, slots: int) -> None:
        """Set the number of slots, which is known after the backend has loaded."""
        self._slots = slots
        self._grant()

    def fail_waiting(self, error: Exception, only: Priority | None = None) -> None:
        """Raise this error in all waiting requests, or in those of one priority."""
        failed = [each for each in self._waiters if only in (None, each.priority)]
        self._waiters = [each for each in self._waiters if only not in (None, each.priority)]
        heapq.heapify(self._waiters)
        for each in failed:
            if not each.granted.done():
                each.granted.set_exception(error)
        self._grant()

    def _grant(self) -> None:
        while self._waiters and not self._is_exclusive:
            first = self._waiters[0]
            if self._used >= (1 if first.exclusive else self._slots):
                return
            heapq.heappop(self._waiters)
            if not first.granted.done():
                self._used += 1
                self._is_exclusive = first.exclusive
                first.granted.set_result(None)


class Slot:
    """A slot that is reserved before its request is known; owned by the event loop.

    One generation may `take` it and must then release it to the admission. The code that reserved
    the slot always calls `release`, which does nothing after `take`.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def take(self) -> bool:
        """Use the slot; returns False if it was used or released before."""
        was_reserved, self._release = self._release is not None, None
        return was_reserved

    def release(self) -> None:
        """Return the slot unless it was taken."""
        release, self._release = self._release, None
        if release is not None:
            release()
