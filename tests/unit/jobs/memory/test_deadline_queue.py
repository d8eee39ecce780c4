"""The order of deadlines, and the removal of stale ones."""

from __future__ import annotations

import math

from jobs.memory.deadline_queue import DeadlineQueue


def test_pop_due_removes_deadlines_in_order() -> None:
    queue = DeadlineQueue(lambda deadline: True)
    queue.add(3.0, "c", "ttl", 0.0)
    queue.add(1.0, "a", "lease", 7.0)
    queue.add(2.0, "b", "execution", 0.0)
    queue.add(1.0, "a too", "retention", 0.0)
    assert [deadline.job_id for deadline in queue.pop_due(2.0)] == ["a", "a too", "b"]
    assert list(queue.pop_due(2.9)) == []
    (deadline,) = queue.pop_due(3.0)
    assert (deadline.job_id, deadline.kind, deadline.version) == ("c", "ttl", 0.0)


def test_add_ignores_infinite_deadline() -> None:
    queue = DeadlineQueue(lambda deadline: True)
    queue.add(math.inf, "a", "lease", 1.0)
    assert len(queue) == 0


def test_stale_deadlines_do_not_accumulate() -> None:
    queue = DeadlineQueue(lambda deadline: deadline.job_id == "kept")
    for number in range(20_000):
        queue.add(float(number), "kept" if number % 100 == 0 else "stale", "ttl", 0.0)
    assert len(queue) < 2_000
    assert sum(deadline.job_id == "kept" for deadline in queue.pop_due(math.inf)) == 200


def test_add_works_during_pop_due() -> None:
    queue = DeadlineQueue(lambda deadline: True)
    queue.add(1.0, "a", "lease", 0.0)
    due_times = []
    for deadline in queue.pop_due(5.0):
        due_times.append(deadline.due_at)
        queue.add(deadline.due_at + 1, "a", "lease", 0.0)
    assert due_times == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_on_earlier_is_called_only_for_the_earliest_deadline() -> None:
    notified: list[float] = []
    queue = DeadlineQueue(lambda deadline: True, lambda: notified.append(queue.next_due_at))
    assert queue.next_due_at == math.inf
    for due_at in (5.0, 7.0, math.inf, 3.0, 4.0):
        queue.add(due_at, "a", "lease", 0.0)
    assert notified == [5.0, 3.0]
    assert [deadline.due_at for deadline in queue.pop_due(5.0)] == [3.0, 4.0, 5.0]
    assert queue.next_due_at == 7.0
