"""Admission: order, limits, and no lost slot after cancellations at any moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.admission import Admission
from engine.errors import EngineClosed, QueueFull
from engine.request import Priority
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks


def start_request(
    admission: Admission, order: list[str], name: str, priority: Priority
) -> asyncio.Task[None]:
    async def wait() -> None:
        await admission.acquire(priority)
        order.append(name)

    return asyncio.create_task(wait())


async def test_free_slots_are_taken_immediately() -> None:
    admission = Admission(slots=2, max_queue=0)
    assert admission.has_free_slot()
    await admission.acquire(Priority.BATCH)
    await admission.acquire(Priority.BATCH)
    assert not admission.has_free_slot()
    assert (admission.running, admission.waiting) == (2, 0)


async def test_slots_are_granted_by_priority_and_then_by_arrival() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    for name, priority in [
        ("batch 1", Priority.BATCH),
        ("job 1", Priority.JOB),
        ("chat 1", Priority.INTERACTIVE),
        ("job 2", Priority.JOB),
        ("chat 2", Priority.INTERACTIVE),
        ("batch 2", Priority.BATCH),
    ]:
        start_request(admission, order, name, priority)
    await run_ready_tasks()
    assert admission.waiting == 6
    for _ in range(6):
        admission.release()
        await run_ready_tasks()
    assert order == ["chat 1", "chat 2", "job 1", "job 2", "batch 1", "batch 2"]
    assert (admission.running, admission.waiting) == (1, 0)


async def test_new_request_does_not_overtake_a_granted_one_that_has_not_run_yet() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    start_request(admission, order, "first", Priority.BATCH)
    await run_ready_tasks()
    admission.release()
    assert not admission.has_free_slot()
    start_request(admission, order, "second", Priority.INTERACTIVE)
    await run_ready_tasks()
    assert order == ["first"]


async def test_queue_is_bounded() -> None:
    # R54
    admission = Admission(slots=1, max_queue=1)
    await admission.acquire(Priority.JOB)
    waiter = start_request(admission, [], "waits", Priority.INTERACTIVE)
    await run_ready_tasks()
    with pytest.raises(QueueFull, match="1 requests are waiting") as caught:
        await admission.acquire(Priority.INTERACTIVE)
    assert caught.value.details["retry_after_s"] == 1
    waiter.cancel()
    await run_ready_tasks()
    assert admission.waiting == 0
    start_request(admission, [], "fits again", Priority.INTERACTIVE)
    await run_ready_tasks()
    assert admission.waiting == 1


async def test_full_interactive_queue_does_not_refuse_jobs() -> None:
    admission, order = Admission(slots=1, max_queue=1), list[str]()
    await admission.acquire(Priority.JOB)
    start_request(admission, order, "chat", Priority.INTERACTIVE)
    start_request(admission, order, "batch", Priority.BATCH)
    start_request(admission, order, "job", Priority.JOB)
    await run_ready_tasks()
    assert admission.waiting == 3
    for _ in range(3):
        admission.release()
        await run_ready_tasks()
    assert order == ["chat", "job", "batch"]


async def test_cancelled_waiter_is_removed() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    cancelled_waiter = start_request(admission, order, "gone", Priority.INTERACTIVE)
    start_request(admission, order, "stays", Priority.JOB)
    await run_ready_tasks()
    cancelled_waiter.cancel()
    await run_ready_tasks()
    assert admission.waiting == 1
    admission.release()
    await run_ready_tasks()
    assert order == ["stays"]
    assert (admission.running, admission.waiting) == (1, 0)


async def test_cancellation_in_the_same_loop_iteration_as_the_grant_releases_the_slot() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    granted = start_request(admission, order, "granted", Priority.JOB)
    start_request(admission, order, "next", Priority.JOB)
    await run_ready_tasks()
    admission.release()
    granted.cancel()
    await run_ready_tasks()
    assert order == ["next"]
    assert (admission.running, admission.waiting) == (1, 0)


async def test_request_is_granted_when_it_arrives_with_a_cancellation_and_a_release() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    cancelled_waiter = start_request(admission, order, "gone", Priority.JOB)
    await run_ready_tasks()
    start_request(admission, order, "comes", Priority.JOB)
    cancelled_waiter.cancel()
    admission.release()
    await run_ready_tasks()
    assert order == ["comes"]
    assert (admission.running, admission.waiting) == (1, 0)


async def test_resize_to_more_slots_grants_them() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    for name in "abc":
        start_request(admission, order, name, Priority.JOB)
    await run_ready_tasks()
    admission.resize(3)
    await run_ready_tasks()
    assert order == ["a", "b"]
    assert admission.slots == 3


async def test_resize_to_fewer_slots_waits_for_releases() -> None:
    admission, order = Admission(slots=2, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    await admission.acquire(Priority.JOB)
    start_request(admission, order, "a", Priority.JOB)
    await run_ready_tasks()
    admission.resize(1)
    admission.release()
    await run_ready_tasks()
    assert order == []
    admission.release()
    await run_ready_tasks()
    assert order == ["a"]


async def test_fail_waiting_raises_in_all_waiters_and_admission_still_works() -> None:
    admission = Admission(slots=1, max_queue=10)
    await admission.acquire(Priority.JOB)
    tasks = [start_request(admission, [], "x", Priority.JOB) for _ in range(3)]
    await run_ready_tasks()
    admission.fail_waiting(EngineClosed("shutting down"))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [EngineClosed] * 3
    assert admission.waiting == 0
    admission.release()
    assert admission.has_free_slot()


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_cancellation_in_the_same_loop_iteration_as_the_error_is_counted_once(
    cancelled_first: bool,
) -> None:
    admission = Admission(slots=1, max_queue=10)
    await admission.acquire(Priority.JOB)
    task = start_request(admission, [], "x", Priority.JOB)
    await run_ready_tasks()
    if cancelled_first:
        task.cancel()
    admission.fail_waiting(EngineClosed("shutting down"))
    task.cancel()
    await run_ready_tasks()
    assert task.cancelled()
    assert (admission.waiting, admission.running) == (0, 1)
    admission.release()
    assert admission.has_free_slot()


async def test_cancelled_waiters_leave_nothing_behind_while_the_slot_is_held() -> None:
    admission = Admission(slots=1, max_queue=2)
    await admission.acquire(Priority.JOB)
    for _ in range(500):
        task = start_request(admission, [], "x", Priority.JOB)
        await run_ready_tasks(2)
        task.cancel()
        await run_ready_tasks(2)
    assert admission.waiting == 0
    assert len(admission._waiters) < 50


async def test_waiter_gets_a_timeout_error_at_its_deadline_and_is_removed(
    clock: VirtualClock,
) -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    start_request(admission, order, "patient", Priority.JOB)
    deadline = asyncio.get_running_loop().time() + 0.01
    with pytest.raises(TimeoutError):
        await admission.acquire(Priority.INTERACTIVE, deadline)
    assert clock.elapsed_s == pytest.approx(0.01)
    assert admission.waiting == 1
    admission.release()
    await run_ready_tasks()
    assert order == ["patient"]
    admission.release()
    assert admission.running == 0


async def test_cancellation_in_the_same_loop_iteration_as_the_deadline_is_counted_once(
    clock: VirtualClock,
) -> None:
    admission = Admission(slots=1, max_queue=10)
    await admission.acquire(Priority.JOB)
    loop, failures = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda loop, context: failures.append(context))
    deadline = loop.time() + 0.01
    task = asyncio.create_task(admission.acquire(Priority.JOB, deadline))
    # Of two timers with the same time, the earlier one is called first: this one.
    loop.call_at(deadline, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    await run_ready_tasks()
    assert (failures, admission.waiting, admission.running) == ([], 0, 1)


async def test_slot_granted_before_the_deadline_is_kept(clock: VirtualClock) -> None:
    admission = Admission(slots=1, max_queue=10)
    await admission.acquire(Priority.JOB)
    deadline = asyncio.get_running_loop().time() + 0.05
    waiting = asyncio.create_task(admission.acquire(Priority.JOB, deadline))
    await run_ready_tasks()
    admission.release()
    await waiting
    await clock.advance(0.1)
    assert (admission.running, admission.waiting) == (1, 0)


async def test_free_slot_is_granted_after_the_deadline() -> None:
    admission = Admission(slots=1, max_queue=10)
    await admission.acquire(Priority.JOB, asyncio.get_running_loop().time() - 1)
    assert admission.running == 1


async def acquire_exclusive(admission: Admission, order: list[str]) -> None:
    await admission.acquire(Priority.JOB, exclusive=True)
    order.append("alone")


async def test_exclusive_request_waits_for_others_and_blocks_later_ones() -> None:
    admission, order = Admission(slots=4, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    await admission.acquire(Priority.INTERACTIVE)
    waiting = asyncio.create_task(acquire_exclusive(admission, order))
    await run_ready_tasks()
    # They have a higher priority and slots are free, but could starve the exclusive request.
    start_request(admission, order, "chat", Priority.INTERACTIVE)
    start_request(admission, order, "job", Priority.JOB)
    admission.release()
    await run_ready_tasks()
    assert (order, admission.has_free_slot()) == ([], False)
    admission.release()
    await waiting
    await run_ready_tasks()
    assert (order, admission.running, admission.has_free_slot()) == (["alone"], 1, False)
    admission.release()
    await run_ready_tasks()
    assert order == ["alone", "chat", "job"]
    assert admission.has_free_slot()


async def test_exclusive_request_is_not_refused_with_interactive_requests() -> None:
    admission, order = Admission(slots=2, max_queue=1), list[str]()
    await admission.acquire(Priority.JOB)
    waiting = asyncio.create_task(acquire_exclusive(admission, order))
    await run_ready_tasks()
    chat = start_request(admission, order, "chat", Priority.INTERACTIVE)
    await run_ready_tasks()
    admission.fail_waiting(EngineClosed("restarting"), Priority.INTERACTIVE)
    with pytest.raises(EngineClosed):
        await chat
    assert not waiting.done()
    admission.release()
    await waiting


async def test_cancelled_exclusive_request_unblocks_others() -> None:
    admission, order = Admission(slots=2, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    waiting = asyncio.create_task(acquire_exclusive(admission, order))
    await run_ready_tasks()
    start_request(admission, order, "chat", Priority.INTERACTIVE)
    await run_ready_tasks()
    waiting.cancel()
    await run_ready_tasks()
    assert (order, admission.running, admission.waiting) == (["chat"], 2, 0)
