"""What is due, in its order, and what is dropped unlooked at."""

from __future__ import annotations

import math

from jobs.memory.deadline_queue import Agenda


def test_what_is_due_comes_in_order_and_once() -> None:
    agenda = Agenda(lambda item: True)
    agenda.put(3.0, "c", "ttl", 0.0)
    agenda.put(1.0, "a", "lease", 7.0)
    agenda.put(2.0, "b", "execution", 0.0)
    agenda.put(1.0, "a too", "retention", 0.0)
    assert [item.job_id for item in agenda.due(2.0)] == ["a", "a too", "b"]
    assert list(agenda.due(2.9)) == []
    (item,) = agenda.due(3.0)
    assert (item.job_id, item.due, item.mark) == ("c", "ttl", 0.0)


def test_what_is_never_due_is_not_kept() -> None:
    agenda = Agenda(lambda item: True)
    agenda.put(math.inf, "a", "lease", 1.0)
    assert len(agenda) == 0


def test_what_matters_no_more_does_not_pile_up() -> None:
    agenda = Agenda(lambda item: item.job_id == "kept")
    for number in range(20_000):
        agenda.put(float(number), "kept" if number % 100 == 0 else "over", "ttl", 0.0)
    assert len(agenda) < 2_000
    assert sum(item.job_id == "kept" for item in agenda.due(math.inf)) == 200


def test_more_may_be_put_in_while_it_is_gone_through() -> None:
    agenda = Agenda(lambda item: True)
    agenda.put(1.0, "a", "lease", 0.0)
    seen = []
    for item in agenda.due(5.0):
        seen.append(item.when)
        agenda.put(item.when + 1, "a", "lease", 0.0)
    assert seen == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_what_is_due_before_all_else_is_told_and_nothing_else() -> None:
    told: list[float] = []
    agenda = Agenda(lambda item: True, lambda: told.append(agenda.next))
    assert agenda.next == math.inf
    for when in (5.0, 7.0, math.inf, 3.0, 4.0):
        agenda.put(when, "a", "lease", 0.0)
    assert told == [5.0, 3.0]
    assert [item.when for item in agenda.due(5.0)] == [3.0, 4.0, 5.0]
    assert agenda.next == 7.0
