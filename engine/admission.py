"""The one door to an engine's slots."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from engine.errors import QueueFull
from engine.request import Priority


class _Waiting(NamedTuple):
    """A request in line, in the order of `rank` and then of arrival."""

    rank: Priority
    arrival: int
    granted: asyncio.Future[None]
    exclusive: bool
    priority: Priority


class Admission:
    """Hands out slots by priority, first come first served within one.

    `max_queue` bounds how many interactive requests wait. Jobs and batches wait in queues of their
    own, whose workers bring no more of them here than there are slots: refused, a job that was
    accepted long ago would fail because a crowd came by.

    One that has to run alone waits until nothing else runs, and keeps out all others until its
    release. Later requests wait behind it whatever their priority: otherwise a few that overlap
    would keep it waiting for ever, and with it the queue that it came from.

    A slot is held from admission until the backend's run has returned, so a run that is still
    winding down after an abort keeps its place. Owned by the event loop: every method is called on
    it, and nothing here is thread-safe.
    """

    def __init__(self, slots: int, max_queue: int) -> None:
        self._slots = slots
        self._max_queue = max_queue
        self._used = 0
        self._is_exclusive = False
        self._order = count()
        self._waiting: list[_Waiting] = []

    @property
    def slots(self) -> int:
        """How many may run at once."""
        return self._slots

    @property
    def running(self) -> int:
        """How many hold a slot."""
        return self._used

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._waiting)

    def has_free_slot(self) -> bool:
        """Whether a request that came now would run at once."""
        return self._used < self._slots and not self._waiting and not self._is_exclusive

    def try_acquire(self) -> bool:
        """Take a slot if one is free; the caller then owes one `release`."""
        free = self.has_free_slot()
        self._used += free
        return free

    async def acquire(
        self, priority: Priority, deadline: float | None = None, *, exclusive: bool = False
    ) -> None:
        """Wait for a slot, till `deadline` by the loop's clock; the caller owes one `release`.

        With `alone` the slot is granted when no other one is held, and no other is granted then.

        Raises:
            QueueFull: it is interactive, and `max_queue` of them wait already.
            TimeoutError: there was none by then.
        """
        if not exclusive and self.try_acquire():
            return
        if priority is Priority.INTERACTIVE:
            ahead = sum(each.priority is Priority.INTERACTIVE for each in self._waiting)
            if ahead >= self._max_queue:
                raise QueueFull(
                    f"{ahead} requests are waiting already, the most that may", retry_after_s=1
                )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        rank = Priority.INTERACTIVE if exclusive else priority
        entry = _Waiting(rank, next(self._order), future, exclusive, priority)
        heapq.heappush(self._waiting, entry)
        if self._used < self._slots:
            # One that has to run alone waits, this one or the first in line.
            self._grant()
        # A third of what `asyncio.timeout` takes: with a full engine every request waits here.
        timer = None if deadline is None else loop.call_at(deadline, self._late, entry)
        try:
            await future
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._leave(entry)
            elif not future.cancelled() and future.exception() is None:
                # The slot was granted in the same turn of the loop that cancelled us.
                self.release()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _late(self, entry: _Waiting) -> None:
        if entry in self._waiting:
            self._leave(entry)
            if not entry.granted.done():
                entry.granted.set_exception(TimeoutError())

    def _leave(self, entry: _Waiting) -> None:
        self._waiting.remove(entry)
        heapq.heapify(self._waiting)
        if entry.exclusive:
            # Others may have waited behind it though there were slots.
            self._grant()

    def release(self) -> None:
        """Give a slot back, to the next in line if there is one."""
        self._used -= 1
        if not self._used:
            self._is_exclusive = False
        self._grant()

    def resize(self, slots: int) -> None:
        """Set the number of slots, once the backend has told it."""
        self._slots = slots
        self._grant()

    def fail_waiting(self, error: Exception, only: Priority | None = None) -> None:
        """Give all that wait, or those of one priority, this error instead of a slot."""
        failed = [each for each in self._waiting if only in (None, each.priority)]
        self._waiting = [each for each in self._waiting if only not in (None, each.priority)]
        heapq.heapify(self._waiting)
        for each in failed:
            if not each.granted.done():
                each.granted.set_exception(error)
        self._grant()

    def _grant(self) -> None:
        while self._waiting and not self._is_exclusive:
            first = self._waiting[0]
            if self._used >= (1 if first.exclusive else self._slots):
                return
            heapq.heappop(self._waiting)
            if not first.granted.done():
                self._used += 1
                self._is_exclusive = first.exclusive
                first.granted.set_result(None)


class Slot:
    """A slot that is held before it is known what will run on it; owned by the event loop.

    One generation may `take` it, and then owes its release; whoever has reserved it calls `release`
    in any case, which does nothing once it was taken.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def take(self) -> bool:
        """Use the slot; False when it was used or given back before."""
        taken, self._release = self._release is not None, None
        return taken

    def release(self) -> None:
        """Give back what nobody has taken."""
        release, self._release = self._release, None
        if release is not None:
            release()
