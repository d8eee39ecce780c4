"""The limit of lines in progress: it falls at a refusal, and rises with answers."""

from __future__ import annotations

import asyncio

from batch.remote.concurrency_limit import ConcurrencyLimit
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks


async def test_no_more_lines_than_the_limit_are_in_progress() -> None:
    limit = ConcurrencyLimit(2)
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


async def test_limit_falls_once_a_second_and_rises_with_answers(clock: VirtualClock) -> None:
    limit = ConcurrencyLimit(10)
    for _ in range(5):
        limit.record_refusal()
    assert limit.limit == 7
    await asyncio.sleep(1)
    limit.record_refusal()
    assert round(limit.limit, 1) == 4.9
    for _ in range(5):
        limit.record_answer()
    assert 5.8 < limit.limit < 6
    for _ in range(200):
        limit.record_answer()
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
