"""What time will demand of jobs: when a lease, a limit or a retention is over."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import Literal, NamedTuple, TypeAlias

Due: TypeAlias = Literal["lease", "execution", "ttl", "retention"]

_LEAST = 1_000


class Item(NamedTuple):
    """A look at a job, when it is due; `mark` says which lease, run, queueing or end is meant."""

    when: float
    order: int
    job_id: str
    due: Due
    mark: float


class Agenda:
    """A heap of what is due and when; owned by the store.

    Nothing is taken out when it does not matter any more: most jobs are over long before the
    limits that were set for them. When there is twice as much as mattered the last time, what does
    not is dropped. `on_sooner` is called when something is due before all that was there.
    """

    def __init__(
        self, matters: Callable[[Item], bool], on_sooner: Callable[[], object] = lambda: None
    ) -> None:
        self._matters = matters
        self._on_sooner = on_sooner
        self._items: list[Item] = []
        self._order = count()
        self._most = _LEAST

    def __len__(self) -> int:
        return len(self._items)

    def put(self, when: float, job_id: str, due: Due, mark: float) -> None:
        """Have a job looked at; never, where `when` is infinite."""
        if when == math.inf:
            return
        item = Item(when, next(self._order), job_id, due, mark)
        heapq.heappush(self._items, item)
        if self._items[0] is item:
            self._on_sooner()
        if len(self._items) > self._most:
            self._items = [item for item in self._items if self._matters(item)]
            heapq.heapify(self._items)
            self._most = 2 * len(self._items) + _LEAST

    @property
    def next(self) -> float:
        """When to look again; infinite where there is nothing."""
        return self._items[0].when if self._items else math.inf

    def due(self, now: float) -> Iterator[Item]:
        """Take out and yield what is due by now, in order."""
        while self._items and self._items[0].when <= now:
            yield heapq.heappop(self._items)
