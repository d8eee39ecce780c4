"""The store in memory: order, waiting, first results, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

import jobs.memory
from jobs import Job, JobStatus, MemoryJobStore
from jobs.memory import StoreFull


class Clock:
    """The store's clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(jobs.memory, "time", clock)
    return clock


async def begin(work: Coroutine[Any, Any, Job]) -> asyncio.Task[Job]:
    """Start something that will have to wait, and let it get there."""
    task = asyncio.create_task(work)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def run_one(store: MemoryJobStore, output: Any = "out") -> Job:
    job = await store.receive()
    return await store.finish(job.id, output=output)


async def test_job_passes_through_its_states(clock: Clock) -> None:
    store = MemoryJobStore()
    queued = await store.enqueue({"prompt": "hello"})
    assert await store.get(queued.id) == queued
    assert (queued.status, queued.input) == (JobStatus.IN_QUEUE, {"prompt": "hello"})
    clock.now += 2
    taken = await store.receive()
    assert await store.get(queued.id) == taken
    assert (taken.id, taken.status, taken.delay_ms) == (queued.id, JobStatus.IN_PROGRESS, 2000)
    clock.now += 3
    ended = await store.finish(taken.id, output=[1])
    assert await store.get(queued.id) == ended
    assert (ended.status, ended.output, ended.error) == (JobStatus.COMPLETED, [1], None)
    assert (ended.delay_ms, ended.execution_ms) == (2000, 3000)


async def test_error_makes_a_job_failed() -> None:
    store = MemoryJobStore()
    job = await store.enqueue({})
    await store.receive()
    failed = await store.finish(job.id, error="it broke")
    assert (failed.status, failed.error, failed.output) == (JobStatus.FAILED, "it broke", None)


async def test_first_result_stands() -> None:
    store = MemoryJobStore()
    job = await store.enqueue({})
    first = await run_one(store, "first")
    assert await store.finish(job.id, output="second") == first
    assert await store.finish(job.id, error="late") == first
    assert await store.get(job.id) == first


async def test_ids_are_runpods_and_never_the_same() -> None:
    store = MemoryJobStore()
    ids = [(await store.enqueue({})).id for _ in range(100)]
    assert len(set(ids)) == 100
    assert all(id.endswith("-u1") for id in ids)
    assert (await store.enqueue({}, prefix="sync-")).id.startswith("sync-")


async def test_oldest_job_is_received_first() -> None:
    store = MemoryJobStore()
    ids = [(await store.enqueue(number)).id for number in range(10)]
    assert [(await store.receive()).id for _ in ids] == ids


async def test_receivers_are_served_in_the_order_they_came() -> None:
    store = MemoryJobStore()
    first, second = await begin(store.receive()), await begin(store.receive())
    a, b = await store.enqueue("a"), await store.enqueue("b")
    assert [(await first).id, (await second).id] == [a.id, b.id]


async def test_job_that_woke_a_receiver_who_was_cancelled_goes_to_the_next() -> None:
    store = MemoryJobStore()
    first, second = await begin(store.receive()), await begin(store.receive())
    job = await store.enqueue({})
    first.cancel()
    async with asyncio.timeout(5):
        assert (await second).id == job.id
    assert first.cancelled()


async def test_cancelled_receiver_takes_no_job_with_it() -> None:
    store = MemoryJobStore()
    receiver = await begin(store.receive())
    receiver.cancel()
    job = await store.enqueue({})
    async with asyncio.timeout(5):
        assert (await store.receive()).id == job.id


async def test_wait_returns_the_ended_job_to_everyone_who_waits() -> None:
    store = MemoryJobStore()
    job = await store.enqueue({})
    waiters = [await begin(store.wait(job.id, 60)) for _ in range(3)]
    ended = await run_one(store)
    async with asyncio.timeout(5):
        assert await asyncio.gather(*waiters) == [ended] * 3
        assert await store.wait(job.id, 60) == ended


async def test_wait_that_is_over_returns_the_job_as_it_is_and_ends_nothing() -> None:
    store = MemoryJobStore()
    job = await store.enqueue({})
    assert await store.wait(job.id, 0.01) == job
    taken = await store.receive()
    assert await store.wait(job.id, 0.01) == taken
    waiter = await begin(store.wait(job.id, 60))
    waiter.cancel()
    await asyncio.wait({waiter})
    ended = await store.finish(job.id, output=1)
    assert await store.wait(job.id, 60) == ended


async def test_waiter_gets_a_result_that_was_forgotten_before_its_turn_came() -> None:
    store = MemoryJobStore(max_jobs=1)
    job = await store.enqueue("first")
    waiter = await begin(store.wait(job.id, 60))
    ended = await run_one(store)
    await store.enqueue("second")
    assert await store.get(job.id) is None
    async with asyncio.timeout(5):
        assert await waiter == ended


async def test_unknown_job_is_none() -> None:
    assert await MemoryJobStore().get("nobody") is None


async def test_full_store_refuses_until_a_job_has_ended() -> None:
    store = MemoryJobStore(max_jobs=2)
    first, second = await store.enqueue(1), await store.enqueue(2)
    with pytest.raises(StoreFull, match="2 jobs"):
        await store.enqueue(3)
    await store.receive()
    with pytest.raises(StoreFull):
        await store.enqueue(3)
    assert store.counts()[JobStatus.IN_QUEUE] == 1
    await store.finish(first.id, output=1)
    third = await store.enqueue(3)
    assert await store.get(first.id) is None
    assert [(await store.receive()).id for _ in range(2)] == [second.id, third.id]


async def test_crowded_store_forgets_what_ended_first() -> None:
    store = MemoryJobStore(max_jobs=3)
    a, b, c = [await store.enqueue(name) for name in "abc"]
    for _ in "abc":
        await store.receive()
    for job in (b, c):
        await store.finish(job.id, output=job.input)
    await store.enqueue("d")
    assert await store.get(b.id) is None
    assert await store.get(c.id) is not None
    assert await store.get(a.id) is not None


async def test_result_is_kept_for_its_time_and_no_longer(clock: Clock) -> None:
    store = MemoryJobStore(retention_s=60)
    job = await store.enqueue({})
    clock.now += 100
    await run_one(store)
    clock.now += 59
    assert await store.get(job.id) is not None
    clock.now += 2
    assert await store.get(job.id) is None


async def test_results_expire_behind_a_job_that_runs_on(clock: Clock) -> None:
    store = MemoryJobStore(retention_s=60)
    slow = await store.enqueue("slow")
    await store.receive()
    quick = [await store.enqueue(number) for number in range(5)]
    for _ in quick:
        await run_one(store)
    clock.now += 61
    # The last of them, looked at first: all that are too old go at once.
    assert await store.get(quick[-1].id) is None
    assert sum(store.counts().values()) == 1
    running = await store.get(slow.id)
    assert running is not None
    assert running.status == JobStatus.IN_PROGRESS


async def test_waiting_and_running_jobs_never_expire(clock: Clock) -> None:
    store = MemoryJobStore(retention_s=60)
    running, waiting = await store.enqueue(1), await store.enqueue(2)
    await store.receive()
    clock.now += 10_000
    assert await store.get(running.id) is not None
    assert await store.get(waiting.id) is not None


async def test_counts_by_state() -> None:
    store = MemoryJobStore()
    for _ in range(4):
        await store.enqueue({})
    for outcome in ({"output": 1}, {"error": "no"}):
        job = await store.receive()
        await store.finish(job.id, **outcome)
    await store.receive()
    assert store.counts() == {
        JobStatus.IN_QUEUE: 1,
        JobStatus.IN_PROGRESS: 1,
        JobStatus.COMPLETED: 1,
        JobStatus.FAILED: 1,
    }
