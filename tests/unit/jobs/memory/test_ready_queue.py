"""The jobs of an endpoint in a line, and who waits at its head."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.memory.ready_queue import JobLine
from jobs.model import Job, Policy


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
def test_order_against_a_sorted_list(steps: list[tuple[str, int, bool]]) -> None:
    line = JobLine()
    model: list[tuple[bool, int, int, str]] = []
    for number, (step, value, low) in enumerate(steps):
        if step == "push":
            line.push(job(str(number), float(value), low=low))
            model.append((low, value, number, str(number)))
        elif step == "remove":
            line.remove(str(value))
            model = [each for each in model if each[3] != str(value)]
        else:
            model.sort()
            assert line.pop() == (model.pop(0)[3] if model else None)
        assert len(line) == len(model)
        assert sorted(line) == sorted(each[3] for each in model)
        oldest = min(model, key=lambda each: (each[1], each[2]))[3] if model else None
        assert line.oldest() == oldest


def test_a_job_that_was_taken_out_and_comes_again_is_there_once() -> None:
    line = JobLine()
    line.push(job("a"))
    line.remove("a")
    line.push(job("a"))
    assert (line.pop(), line.pop()) == ("a", None)


def test_jobs_that_were_taken_back_do_not_pile_up() -> None:
    line = JobLine()
    line.push(job("stays"))
    for number in range(10_000):
        line.push(job(str(number), 1.0))
        line.remove(str(number))
    assert len(line._first) < 3_000
    assert line.pop() == "stays"


async def begin(line: JobLine) -> asyncio.Task[None]:
    task = asyncio.create_task(line.wait())
    await asyncio.sleep(0)
    return task


async def test_each_job_wakes_one_who_waits() -> None:
    line = JobLine()
    waiters = [await begin(line) for _ in range(3)]
    line.push(job("a"))
    line.push(job("b"))
    await asyncio.sleep(0)
    assert [each.done() for each in waiters] == [True, True, False]
    waiters[2].cancel()
    await asyncio.wait(waiters)
    assert not line.watched


async def test_nobody_waits_where_there_is_a_job() -> None:
    line = JobLine()
    line.push(job("a"))
    await line.wait()
    await line.watch()


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_wake_up_is_not_lost_with_who_leaves(cancel_first: bool) -> None:
    line = JobLine()
    leaves, stays = await begin(line), await begin(line)
    if cancel_first:
        # Cancelled, but it has not heard of it when the job comes.
        leaves.cancel()
        line.push(job("a"))
    else:
        line.push(job("a"))
        leaves.cancel()
    await asyncio.wait_for(stays, 5)
    with pytest.raises(asyncio.CancelledError):
        await leaves
    assert not line.watched


async def test_others_are_woken_for_what_the_first_did_not_take() -> None:
    line = JobLine()
    first, second = await begin(line), await begin(line)
    line.wake()
    await asyncio.sleep(0)
    # There is nothing to look at.
    assert not first.done()
    line.push(job("a"))
    await asyncio.wait_for(first, 5)
    assert not second.done()
    line.wake()
    await asyncio.wait_for(second, 5)


async def test_who_watches_takes_no_wake_up_from_who_takes() -> None:
    line = JobLine()
    watches = asyncio.create_task(line.watch())
    takes = await begin(line)
    line.push(job("a"))
    await asyncio.wait_for(asyncio.gather(watches, takes), 5)
