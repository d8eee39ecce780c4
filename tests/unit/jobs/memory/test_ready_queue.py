"""The order of waiting jobs, and the wake-ups of tasks that wait for one."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.memory.ready_queue import ReadyQueue
from jobs.model import Job, Policy
from tests.waiting import run_ready_tasks


def job(name: str, queued_at: float = 0.0, *, low: bool = False) -> Job:
    return Job(
        id=name,
        endpoint="e",
        input=b"",
        created_at=0.0,
        queued_at=queued_at,
        policy=Policy(low_priority=low),
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("remove"), st.integers(0, 30), st.just(False)),
        st.tuples(st.just("pop"), st.just(0), st.just(False)),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_pop_returns_jobs_in_the_order_of_a_sorted_list(steps: list[tuple[str, int, bool]]) -> None:
    queue = ReadyQueue()
    model: list[tuple[bool, int, int, str]] = []
    for number, (step, value, low) in enumerate(steps):
        if step == "push":
            queue.push(job(str(number), float(value), low=low))
            model.append((low, value, number, str(number)))
        elif step == "remove":
            queue.remove(str(value))
            model = [each for each in model if each[3] != str(value)]
        else:
            model.sort()
            assert queue.pop() == (model.pop(0)[3] if model else None)
        assert len(queue) == len(model)
        assert sorted(queue) == sorted(each[3] for each in model)
        oldest = min(model, key=lambda each: (each[1], each[2]))[3] if model else None
        assert queue.peek_oldest() == oldest


def test_removed_job_that_is_pushed_a_second_time_has_one_entry() -> None:
    queue = ReadyQueue()
    queue.push(job("a"))
    queue.remove("a")
    queue.push(job("a"))
    assert (queue.pop(), queue.pop()) == ("a", None)


def test_entries_of_removed_jobs_do_not_accumulate() -> None:
    queue = ReadyQueue()
    queue.push(job("stays"))
    for number in range(10_000):
        queue.push(job(str(number), 1.0))
        queue.remove(str(number))
    assert len(queue._normal) < 3_000
    assert queue.pop() == "stays"


async def start_consumer(queue: ReadyQueue) -> asyncio.Task[None]:
    task = asyncio.create_task(queue.wait_as_consumer())
    await run_ready_tasks()
    return task


async def test_push_wakes_one_consumer_per_job() -> None:
    queue = ReadyQueue()
    waiters = [await start_consumer(queue) for _ in range(3)]
    queue.push(job("a"))
    queue.push(job("b"))
    await run_ready_tasks()
    assert [each.done() for each in waiters] == [True, True, False]
    waiters[2].cancel()
    await asyncio.wait(waiters)
    assert not queue.has_waiters


async def test_waiting_returns_immediately_if_a_job_is_ready() -> None:
    queue = ReadyQueue()
    queue.push(job("a"))
    await queue.wait_as_consumer()
    await queue.wait_as_observer()


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_wake_up_of_a_cancelled_consumer_is_passed_on(cancel_first: bool) -> None:
    queue = ReadyQueue()
    cancelled, remaining = await start_consumer(queue), await start_consumer(queue)
    if cancel_first:
        # Cancelled, but its task has not run yet when the job comes.
        cancelled.cancel()
        queue.push(job("a"))
    else:
        queue.push(job("a"))
        cancelled.cancel()
    await asyncio.wait_for(remaining, 30)
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert not queue.has_waiters


async def test_wake_waiter_wakes_the_next_consumer_if_a_job_is_left() -> None:
    queue = ReadyQueue()
    first, second = await start_consumer(queue), await start_consumer(queue)
    queue.wake_waiter()
    await run_ready_tasks()
    # No job is ready.
    assert not first.done()
    queue.push(job("a"))
    await asyncio.wait_for(first, 30)
    assert not second.done()
    queue.wake_waiter()
    await asyncio.wait_for(second, 30)


async def test_observer_does_not_consume_the_wake_up_of_a_consumer() -> None:
    queue = ReadyQueue()
    observer = asyncio.create_task(queue.wait_as_observer())
    consumer = await start_consumer(queue)
    queue.push(job("a"))
    await asyncio.wait_for(asyncio.gather(observer, consumer), 30)
