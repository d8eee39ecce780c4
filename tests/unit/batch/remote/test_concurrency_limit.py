"""The semaphore of lines in progress: its limit falls at a refusal, and rises with answers."""

from __future__ import annotations

import asyncio

import pytest

from batch.remote.concurrency_limit import ConcurrencyLimit
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks


def record_answers(limit: ConcurrencyLimit, answers: int) -> None:
    for _ in range(answers):
        limit.record_answer(1.0, 10)


async def test_no_more_lines_than_the_limit_are_in_progress() -> None:
    limit = ConcurrencyLimit(2)
    record_answers(limit, 3)
    tasks = [asyncio.create_task(limit.acquire()) for _ in range(4)]
    await run_ready_tasks()
    assert (limit.in_use, [task.done() for task in tasks]) == (2, [True, True, False, False])
    limit.release()
    await run_ready_tasks()
    assert [task.done() for task in tasks] == [True, True, True, False]
    tasks[3].cancel()
    await run_ready_tasks()
    limit.release()
    assert limit.in_use == 1


async def test_limit_doubles_with_each_round_up_to_the_maximum() -> None:
    limit = ConcurrencyLimit(10)
    limits = []
    for answers in (3, 3, 4, 8, 10):
        record_answers(limit, answers - 1)
        limits.append(limit.limit)
        record_answers(limit, 1)
    assert limits == [1, 2, 4, 8, 10]


async def test_limit_falls_once_a_second_and_rises_by_one_per_round(clock: VirtualClock) -> None:
    limit = ConcurrencyLimit(10)
    record_answers(limit, 3 + 3 + 4 + 8)
    for _ in range(5):
        limit.record_refusal()
    assert limit.limit == 7
    await asyncio.sleep(1)
    limit.record_refusal()
    assert limit.limit == pytest.approx(4.9)
    record_answers(limit, 20)
    assert limit.limit == pytest.approx(5.9)
    record_answers(limit, 200)
    assert limit.limit == 10
    assert clock.elapsed_s == 1


async def test_limit_is_at_least_one(clock: VirtualClock) -> None:
    limit = ConcurrencyLimit(2)
    for _ in range(9):
        limit.record_refusal()
        await asyncio.sleep(1)
    assert limit.limit == 1
    await limit.acquire()
    waiting = asyncio.create_task(limit.acquire())
    await run_ready_tasks()
    assert not waiting.done()
    limit.release()
    await waiting
    assert clock.elapsed_s == 9
