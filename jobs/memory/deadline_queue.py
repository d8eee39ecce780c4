"""A queue of the deadlines of jobs, ordered by time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import Literal, NamedTuple, TypeAlias

DeadlineKind: TypeAlias = Literal["lease", "execution", "ttl", "retention"]

_MIN_COMPACTION_LENGTH = 1_000


class Deadline(NamedTuple):
    """A time at which a job must be checked.

    `version` identifies the lease, run, queueing or end of the job that the deadline was set for:
    an attempt number or a time. If the job has another one by then, the deadline is stale.
    """

    due_at: float
    order: int
    job_id: str
    kind: DeadlineKind
    version: float


class DeadlineQueue:
    """A heap of deadlines; owned by the store.

    Deadlines are not removed when they become stale: most jobs end long before the limits that were
    set for them. When the heap has twice as many entries as were current at the last compaction,
    `is_current` filters out the stale ones. `on_earlier` is called when a new deadline is the
    earliest.
    """

    def __init__(
        self,
        is_current: Callable[[Deadline], bool],
        on_earlier: Callable[[], object] = lambda: None,
    ) -> None:
        self._is_current = is_current
        self._on_earlier = on_earlier
        self._heap: list[Deadline] = []
        self._order = count()
        self._compaction_length = _MIN_COMPACTION_LENGTH

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_at: float, job_id: str, kind: DeadlineKind, version: float) -> None:
        """Add a deadline; an infinite `due_at` adds nothing."""
        if due_at == math.inf:
            return
        deadline = Deadline(due_at, next(self._order), job_id, kind, version)
        heapq.heappush(self._heap, deadline)
        if self._heap[0] is deadline:
            self._on_earlier()
        if len(self._heap) > self._compaction_length:
            self._heap = [deadline for deadline in self._heap if self._is_current(deadline)]
            heapq.heapify(self._heap)
            self._compaction_length = 2 * len(self._heap) + _MIN_COMPACTION_LENGTH

    @property
    def next_due_at(self) -> float:
        """The time of the earliest deadline, or infinity."""
        return self._heap[0].due_at if self._heap else math.inf

    def pop_due(self, now: float) -> Iterator[Deadline]:
        """Remove and yield the deadlines that have passed, earliest first."""
        while self._heap and self._heap[0].due_at <= now:
            yield heapq.heappop(self._heap)
