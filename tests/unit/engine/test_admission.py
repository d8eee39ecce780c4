"""The one door: order, bound, and no slot lost whatever is cancelled when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.admission import Admission
from engine.errors import EngineClosed, QueueFull
from engine.request import Priority


async def turns(count: int = 5) -> None:
    """Let the loop run everything that is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


def enter(
    admission: Admission, order: list[str], name: str, priority: Priority
) -> asyncio.Task[None]:
    async def wait() -> None:
        await admission.acquire(priority)
        order.append(name)

    return asyncio.create_task(wait())


async def test_free_slots_are_taken_at_once() -> None:
    admission = Admission(slots=2, max_queue=0)
    assert admission.has_free_slot()
    await admission.acquire(Priority.BATCH)
    await admission.acquire(Priority.BATCH)
    assert not admission.has_free_slot()
    assert (admission.running, admission.waiting) == (2, 0)


async def test_order_is_by_priority_and_first_come_within_one() -> None:
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
        enter(admission, order, name, priority)
    await turns()
    assert admission.waiting == 6
    for _ in range(6):
        admission.release()
        await turns()
    assert order == ["chat 1", "chat 2", "job 1", "job 2", "batch 1", "batch 2"]
    assert (admission.running, admission.waiting) == (1, 0)


async def test_newcomer_does_not_overtake_one_who_was_granted_but_has_not_run_yet() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    enter(admission, order, "first", Priority.BATCH)
    await turns()
    admission.release()
    assert not admission.has_free_slot()
    enter(admission, order, "second", Priority.INTERACTIVE)
    await turns()
    assert order == ["first"]


async def test_queue_is_bounded() -> None:
    # R54
    admission = Admission(slots=1, max_queue=1)
    await admission.acquire(Priority.JOB)
    waiter = enter(admission, [], "waits", Priority.INTERACTIVE)
    await turns()
    with pytest.raises(QueueFull, match="1 requests are waiting") as caught:
        await admission.acquire(Priority.INTERACTIVE)
    assert caught.value.details["retry_after_s"] == 1
    waiter.cancel()
    await turns()
    assert admission.waiting == 0
    enter(admission, [], "fits again", Priority.INTERACTIVE)
    await turns()
    assert admission.waiting == 1


async def test_queue_of_the_interactive_never_refuses_a_job() -> None:
    admission, order = Admission(slots=1, max_queue=1), list[str]()
    await admission.acquire(Priority.JOB)
    enter(admission, order, "chat", Priority.INTERACTIVE)
    enter(admission, order, "batch", Priority.BATCH)
    enter(admission, order, "job", Priority.JOB)
    await turns()
    assert admission.waiting == 3
    for _ in range(3):
        admission.release()
        await turns()
    assert order == ["chat", "job", "batch"]


async def test_cancelled_waiter_leaves_the_line() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    gone = enter(admission, order, "gone", Priority.INTERACTIVE)
    enter(admission, order, "stays", Priority.JOB)
    await turns()
    gone.cancel()
    await turns()
    assert admission.waiting == 1
    admission.release()
    await turns()
    assert order == ["stays"]
    assert (admission.running, admission.waiting) == (1, 0)


async def test_cancel_in_the_turn_of_the_grant_gives_the_slot_back() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    granted = enter(admission, order, "granted", Priority.JOB)
    enter(admission, order, "next", Priority.JOB)
    await turns()
    admission.release()
    granted.cancel()
    await turns()
    assert order == ["next"]
    assert (admission.running, admission.waiting) == (1, 0)


async def test_one_who_comes_in_the_turn_of_a_cancel_and_a_release_is_not_forgotten() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    gone = enter(admission, order, "gone", Priority.JOB)
    await turns()
    enter(admission, order, "comes", Priority.JOB)
    gone.cancel()
    admission.release()
    await turns()
    assert order == ["comes"]
    assert (admission.running, admission.waiting) == (1, 0)


async def test_more_slots_let_more_in() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    for name in "abc":
        enter(admission, order, name, Priority.JOB)
    await turns()
    admission.resize(3)
    await turns()
    assert order == ["a", "b"]
    assert admission.slots == 3


async def test_fewer_slots_wait_until_enough_were_given_back() -> None:
    admission, order = Admission(slots=2, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    await admission.acquire(Priority.JOB)
    enter(admission, order, "a", Priority.JOB)
    await turns()
    admission.resize(1)
    admission.release()
    await turns()
    assert order == []
    admission.release()
    await turns()
    assert order == ["a"]


async def test_everyone_in_line_gets_the_error_and_the_door_still_works() -> None:
    admission = Admission(slots=1, max_queue=10)
    await admission.acquire(Priority.JOB)
    tasks = [enter(admission, [], "x", Priority.JOB) for _ in range(3)]
    await turns()
    admission.fail_waiting(EngineClosed("shutting down"))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [EngineClosed] * 3
    assert admission.waiting == 0
    admission.release()
    assert admission.has_free_slot()


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_cancel_in_the_turn_of_the_error_is_counted_once(cancelled_first: bool) -> None:
    admission = Admission(slots=1, max_queue=10)
    await admission.acquire(Priority.JOB)
    task = enter(admission, [], "x", Priority.JOB)
    await turns()
    if cancelled_first:
        task.cancel()
    admission.fail_waiting(EngineClosed("shutting down"))
    task.cancel()
    await turns()
    assert task.cancelled()
    assert (admission.waiting, admission.running) == (0, 1)
    admission.release()
    assert admission.has_free_slot()


async def test_cancelled_waiters_leave_nothing_behind_while_the_slot_is_held() -> None:
    admission = Admission(slots=1, max_queue=2)
    await admission.acquire(Priority.JOB)
    for _ in range(500):
        task = enter(admission, [], "x", Priority.JOB)
        await turns(2)
        task.cancel()
        await turns(2)
    assert admission.waiting == 0
    assert len(admission._waiters) < 50


async def test_whoever_waits_past_the_deadline_is_told_and_leaves_the_line() -> None:
    admission, order = Admission(slots=1, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    enter(admission, order, "patient", Priority.JOB)
    deadline = asyncio.get_running_loop().time() + 0.01
    with pytest.raises(TimeoutError):
        await admission.acquire(Priority.INTERACTIVE, deadline)
    assert admission.waiting == 1
    admission.release()
    await turns()
    assert order == ["patient"]
    admission.release()
    assert admission.running == 0


async def test_whoever_leaves_in_the_turn_of_the_deadline_is_counted_once() -> None:
    admission = Admission(slots=1, max_queue=10)
    await admission.acquire(Priority.JOB)
    loop, said = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda loop, context: said.append(context))
    deadline = loop.time() + 0.01
    task = asyncio.create_task(admission.acquire(Priority.JOB, deadline))
    # Of two timers of one moment the first is called first: this one.
    loop.call_at(deadline, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    await turns()
    assert (said, admission.waiting, admission.running) == ([], 0, 1)


async def test_a_slot_that_is_granted_before_the_deadline_stays() -> None:
    admission = Admission(slots=1, max_queue=10)
    await admission.acquire(Priority.JOB)
    deadline = asyncio.get_running_loop().time() + 0.05
    waiting = asyncio.create_task(admission.acquire(Priority.JOB, deadline))
    await turns()
    admission.release()
    await waiting
    await asyncio.sleep(0.1)
    assert (admission.running, admission.waiting) == (1, 0)


async def test_a_free_slot_needs_no_time() -> None:
    admission = Admission(slots=1, max_queue=10)
    await admission.acquire(Priority.JOB, asyncio.get_running_loop().time() - 1)
    assert admission.running == 1


async def acquire_alone(admission: Admission, order: list[str]) -> None:
    await admission.acquire(Priority.JOB, exclusive=True)
    order.append("alone")


async def test_one_that_runs_alone_waits_for_the_others_and_keeps_out_later_ones() -> None:
    admission, order = Admission(slots=4, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    await admission.acquire(Priority.INTERACTIVE)
    waiting = asyncio.create_task(acquire_alone(admission, order))
    await turns()
    # They are more urgent and there are slots: but then the first one might wait for ever.
    enter(admission, order, "chat", Priority.INTERACTIVE)
    enter(admission, order, "job", Priority.JOB)
    admission.release()
    await turns()
    assert (order, admission.has_free_slot()) == ([], False)
    admission.release()
    await waiting
    await turns()
    assert (order, admission.running, admission.has_free_slot()) == (["alone"], 1, False)
    admission.release()
    await turns()
    assert order == ["alone", "chat", "job"]
    assert admission.has_free_slot()


async def test_one_that_runs_alone_is_not_refused_with_interactive_requests() -> None:
    admission, order = Admission(slots=2, max_queue=1), list[str]()
    await admission.acquire(Priority.JOB)
    waiting = asyncio.create_task(acquire_alone(admission, order))
    await turns()
    chat = enter(admission, order, "chat", Priority.INTERACTIVE)
    await turns()
    admission.fail_waiting(EngineClosed("restarting"), Priority.INTERACTIVE)
    with pytest.raises(EngineClosed):
        await chat
    assert not waiting.done()
    admission.release()
    await waiting


async def test_one_that_was_to_run_alone_lets_others_in_when_it_leaves() -> None:
    admission, order = Admission(slots=2, max_queue=10), list[str]()
    await admission.acquire(Priority.JOB)
    waiting = asyncio.create_task(acquire_alone(admission, order))
    await turns()
    enter(admission, order, "chat", Priority.INTERACTIVE)
    await turns()
    waiting.cancel()
    await turns()
    assert (order, admission.running, admission.waiting) == (["chat"], 2, 0)
