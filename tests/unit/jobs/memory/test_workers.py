"""Who holds which job, and what a worker is to stop."""

from __future__ import annotations

import asyncio
import math

from jobs.memory.workers import STOP_S, Workers


async def listen(workers: Workers, wait_s: float = 60) -> asyncio.Task[list[str]]:
    task = asyncio.create_task(workers.stops("w", wait_s))
    await asyncio.sleep(0)
    return task


def test_jobs_are_held_in_the_order_they_came() -> None:
    workers = Workers()
    for name in "cab":
        workers.hold("w", name)
    workers.release("w", "a")
    workers.release("w", "nobody's")
    workers.release("nobody", "a")
    assert workers.held("w") == ["c", "b"]
    for name in "cb":
        workers.release("w", name)
    assert list(workers.held("w")) == []
    assert len(workers) == 0


async def test_a_worker_that_listens_hears_at_once_and_once() -> None:
    workers = Workers()
    listening = await listen(workers)
    workers.stop("w", "a", now=0)
    workers.stop("w", "b", now=0)
    assert await listening == ["a", "b"]
    assert await workers.stops("w", 0) == []
    assert len(workers) == 0


async def test_what_it_did_not_hear_waits_for_it() -> None:
    workers = Workers()
    workers.stop("w", "a", now=0)
    assert await workers.stops("w", 60) == ["a"]


async def test_of_two_who_listen_as_one_worker_one_hears() -> None:
    workers = Workers()
    both = [await listen(workers) for _ in range(2)]
    workers.stop("w", "a", now=0)
    assert sorted(await asyncio.gather(*both)) == [[], ["a"]]


async def test_none_after_its_time_and_none_when_it_leaves() -> None:
    workers = Workers()
    assert await workers.stops("w", 0.001) == []
    leaves = await listen(workers)
    assert len(workers) == 1
    leaves.cancel()
    await asyncio.wait({leaves})
    assert len(workers) == 0


async def test_a_stop_of_an_earlier_attempt_is_not_told() -> None:
    workers = Workers()
    workers.hold("w", "a")
    workers.release("w", "a")
    workers.stop("w", "a", now=0)
    workers.hold("w", "a")
    assert await workers.stops("w", 0) == []
    assert workers.held("w") == ["a"]


async def test_a_stop_is_told_again_when_it_is_time() -> None:
    workers = Workers()
    assert workers.next == math.inf
    for name, when in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        workers.stop_again("w", name, when)
    workers.over(1.9)
    assert (await workers.stops("w", 0), workers.next) == ([], 2.0)
    listening = await listen(workers)
    workers.over(2.0)
    assert (await listening, workers.next) == (["b"], 3.0)
    workers.over(4.0)
    assert (await workers.stops("w", 0), workers.next) == (["a"], math.inf)
    assert len(workers) == 0


async def test_a_stop_is_not_told_again_to_who_is_given_the_job_anew() -> None:
    workers = Workers()
    for name in "vw":
        workers.stop_again(name, "a", 1.0)
    workers.hold("w", "a")
    workers.over(1.0)
    assert (await workers.stops("w", 0), await workers.stops("v", 0)) == ([], ["a"])


async def test_a_stop_that_was_told_again_is_dropped_as_any_other() -> None:
    workers = Workers()
    workers.stop_again("w", "a", 1.0)
    workers.over(STOP_S)
    assert len(workers) == 1
    workers.over(STOP_S + 1.0)
    assert len(workers) == 0


async def test_a_stop_is_dropped_when_nobody_asks_for_it() -> None:
    workers = Workers()
    workers.stop("w", "a", now=0)
    workers.stop("w", "b", now=1)
    workers.over(STOP_S)
    assert await workers.stops("w", 0) == ["b"]
    workers.stop("w", "c", now=0)
    workers.over(STOP_S)
    assert len(workers) == 0


async def test_all_are_idle_when_the_last_job_has_gone() -> None:
    workers = Workers()
    await workers.idle()
    workers.hold("v", "a")
    workers.hold("w", "b")
    waiting = asyncio.create_task(workers.idle())
    for worker, job in (("v", "a"), ("v", "a"), ("w", "nobody's")):
        workers.release(worker, job)
        await asyncio.sleep(0)
        assert not waiting.done()
    workers.release("w", "b")
    async with asyncio.timeout(5):
        await waiting
