"""A change while it is on its way to the disk, and when the disk refuses it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from jobs import Job, JobStatus, Limits, MemoryJobStore, NewJob, Policy, StoreUnavailable
from tests.unit.jobs.journals import ManualJournal

T = TypeVar("T")


class World:
    """A store on a disk that answers when the test says so, and time that passes by hand."""

    def __init__(self, **limits: Any) -> None:
        self.disk = ManualJournal()
        self.time = 0.0
        self.ended: list[Job] = []
        self.store = MemoryJobStore(
            Limits(**limits),
            self.disk,
            on_ended=self.ended.append,
            now=lambda: 1e9 + self.time,
            monotonic=lambda: self.time,
        )

    async def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start what waits for the disk."""
        task = asyncio.create_task(work)
        for _ in range(5):
            await asyncio.sleep(0)
        return task

    async def written(self, work: Coroutine[Any, Any, T]) -> T:
        task = await self.start(work)
        await self.disk.write()
        return await task

    async def refused(self, work: Coroutine[Any, Any, Any]) -> None:
        task = await self.start(work)
        await self.disk.refuse()
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await task

    async def waiting(self, **fields: Any) -> Job:
        return await self.written(self.store.enqueue(NewJob(endpoint="e", input=b"1", **fields)))

    async def running(self, **fields: Any) -> Job:
        await self.waiting(**fields)
        (job,) = await self.store.receive("e", "w", lease_s=30)
        return job

    async def status(self, job: Job) -> JobStatus | None:
        now = await self.store.get(job.id)
        return now.status if now is not None else None


async def test_nobody_sees_a_job_that_is_not_on_disk() -> None:
    world = World()
    sending = await world.start(world.store.enqueue(NewJob(endpoint="e", input=b"1")))
    assert await world.store.recent("e", 10) == []
    assert not world.store.available("e")
    assert world.store.endpoints() == []
    await world.disk.write()
    assert await world.store.recent("e", 10) == [await sending]


async def test_a_refused_job_leaves_nothing() -> None:
    world = World(max_jobs=1)
    for _ in range(3):
        await world.refused(world.store.enqueue(NewJob(endpoint="e", input=b"1")))
    assert world.disk.forgotten == [job.id for job in world.disk.saved]
    assert (len(world.store._ledger), world.store._ledger.bytes) == (0, 0)
    await world.waiting()


async def test_an_end_is_seen_when_it_is_on_disk_and_not_before() -> None:
    world = World()
    job = await world.running()
    waiting = await world.start(world.store.wait(job.id, 60))
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    assert await world.status(job) is JobStatus.IN_PROGRESS
    assert world.ended == []
    assert not waiting.done()
    await world.disk.write()
    assert await acking
    assert (await waiting) == world.ended[0]


async def test_a_refused_end_has_not_happened_and_can_be_said_again() -> None:
    world = World()
    job = await world.running()
    await world.refused(world.store.ack(job.id, 1, output=b"1"))
    assert await world.store.get(job.id) == job
    assert world.disk.saved[-1] == job
    assert world.ended == []
    assert await world.store.progress(job.id, 1, b'"going on"')
    assert await world.written(world.store.ack(job.id, 1, output=b"2"))
    assert world.ended[0].output == b"2"


async def test_an_end_said_twice_is_no_success_before_the_first_is() -> None:
    world = World()
    job = await world.running()
    first = await world.start(world.store.ack(job.id, 1, output=b"1"))
    second = await world.start(world.store.ack(job.id, 1, output=b"1"))
    assert not second.done()
    await world.disk.write()
    assert (await first, await second) == (True, False)


async def test_the_second_of_two_ends_takes_the_place_of_a_refused_first() -> None:
    world = World()
    job = await world.running()
    first = await world.start(world.store.ack(job.id, 1, output=b"1"))
    second = await world.start(world.store.ack(job.id, 1, output=b"2"))
    await world.disk.refuse()
    with pytest.raises(StoreUnavailable):
        await first
    await world.disk.write()
    assert await second
    assert [each.output for each in world.ended] == [b"2"]


async def test_whoever_was_given_up_does_not_wait_for_another_s_end() -> None:
    world = World()
    job = await world.running()
    await world.store.nack(job.id, 1)
    (job,) = await world.store.receive("e", "w", lease_s=30)
    acking = await world.start(world.store.ack(job.id, 2, output=b"1"))
    late = await world.start(world.store.ack(job.id, 1, output=b"2"))
    assert late.done()
    assert not await late
    await world.disk.write()
    assert await acking


async def test_nothing_else_happens_to_a_job_that_is_changing() -> None:
    world = World(max_losses=1)
    job = await world.running(policy=Policy(execution_timeout_ms=5_000, ttl_ms=20_000))
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    assert not await world.store.nack(job.id, 1, "lost")
    assert not await world.store.progress(job.id, 1, b"1")
    assert not await world.store.append(job.id, 1, [b"1"])
    assert await world.store.lose("w", "gone") == 0
    world.time = 100.0
    await world.store.sweep()
    assert await world.status(job) is JobStatus.IN_PROGRESS
    await world.disk.write()
    assert await acking
    assert await world.status(job) is JobStatus.COMPLETED
    world.time = 101.0
    await world.store.sweep()
    assert await world.status(job) is JobStatus.COMPLETED


async def test_a_lease_goes_on_while_the_disk_thinks_about_an_end() -> None:
    """`ack` says: it has not ended, the lease still holds."""
    world = World()
    job = await world.running()
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    world.time = 25.0
    assert await world.store.extend(job.id, 1, 30)
    world.time = 35.0
    await world.store.sweep()
    await world.disk.refuse()
    with pytest.raises(StoreUnavailable):
        await acking
    world.time = 40.0
    await world.store.sweep()
    assert await world.status(job) is JobStatus.IN_PROGRESS


async def test_a_job_whose_cancel_is_on_its_way_is_handed_to_nobody() -> None:
    world = World()
    first, second = await world.waiting(), await world.waiting()
    cancelling = await world.start(world.store.cancel(first.id))
    assert await world.status(first) is JobStatus.IN_QUEUE
    receiving = await world.start(world.store.receive("e", "w", lease_s=30, wait_s=60, limit=5))
    assert [job.id for job in await receiving] == [second.id]
    await world.disk.refuse()
    with pytest.raises(StoreUnavailable):
        await cancelling
    # It is in its old place again.
    assert [job.id for job in await world.store.receive("e", "w", lease_s=30)] == [first.id]


async def test_a_refused_cancel_wakes_who_waits_for_a_job() -> None:
    world = World()
    job = await world.waiting()
    cancelling = await world.start(world.store.cancel(job.id))
    receiving = await world.start(world.store.receive("e", "w", lease_s=30, wait_s=60))
    assert not receiving.done()
    await world.disk.refuse()
    assert [each.id for each in await receiving] == [job.id]
    with pytest.raises(StoreUnavailable):
        await cancelling


async def test_a_worker_is_told_to_stop_only_when_the_end_is_on_disk() -> None:
    """A worker that has stopped says no more of its job: it would hang if the end were refused."""
    world = World()
    job = await world.running()
    cancelling = await world.start(world.store.cancel(job.id))
    assert await world.store.stops("w", 0) == []
    await world.disk.refuse()
    with pytest.raises(StoreUnavailable):
        await cancelling
    assert await world.store.stops("w", 0) == []
    await world.written(world.store.cancel(job.id))
    assert await world.store.stops("w", 0) == [job.id]


async def test_whoever_asked_for_a_change_may_leave() -> None:
    world = World()
    job = await world.running()
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    acking.cancel()
    await asyncio.gather(acking, return_exceptions=True)
    await world.disk.write()
    assert await world.status(job) is JobStatus.COMPLETED


async def test_cancel_and_retry_wait_for_what_is_on_its_way() -> None:
    world = World()
    job = await world.running()
    acking = await world.start(world.store.ack(job.id, 1, error="no"))
    cancelling = await world.start(world.store.cancel(job.id))
    retrying = await world.start(world.store.retry(job.id))
    await world.disk.write()
    cancelled = await cancelling
    assert cancelled is not None
    assert (await acking, cancelled.status) == (True, JobStatus.FAILED)
    await world.disk.write()
    again = await retrying
    assert again is not None
    assert again.status is JobStatus.IN_QUEUE


async def test_a_cancel_that_waited_for_a_job_that_is_gone_finds_none() -> None:
    world = World()
    job = await world.running(policy=Policy(ttl_ms=10_000))
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    entry = world.store._ledger.get(job.id)
    assert entry is not None
    assert entry.changing is not None
    # As time would, in the turn in which the change is undone, and before who waits for it wakes.
    entry.changing.add_done_callback(lambda _: world.store._ledger.forget(entry))
    cancelling = await world.start(world.store.cancel(job.id))
    await world.disk.refuse()
    with pytest.raises(StoreUnavailable):
        await acking
    assert await cancelling is None


async def test_a_refused_retry_leaves_the_job_as_it_had_failed() -> None:
    world = World()
    job = await world.running()
    await world.store.append(job.id, 1, [b"1"])
    await world.written(world.store.ack(job.id, 1, error="no"))
    failed = await world.store.get(job.id)
    await world.refused(world.store.retry(job.id))
    assert await world.store.get(job.id) == failed
    assert len(await world.store.read(job.id, (0, 0), 0)) == 1
    assert not world.store.available("e")


async def test_losing_a_worker_gives_back_what_it_can_when_the_disk_refuses_the_rest() -> None:
    world = World(max_losses=2)
    often = await world.running()
    await world.store.nack(often.id, 1, "once")
    await world.waiting()
    often, other = sorted(
        await world.store.receive("e", "gone", lease_s=30, limit=2), key=lambda job: -job.losses
    )
    await world.refused(world.store.lose("gone", "went away"))
    assert await world.status(often) is JobStatus.IN_PROGRESS
    assert await world.status(other) is JobStatus.IN_QUEUE


async def test_an_end_in_time_that_is_refused_is_tried_again() -> None:
    world = World()
    job = await world.running(policy=Policy(execution_timeout_ms=5_000))
    await world.store.extend(job.id, 1, 1000)
    world.time = 6.0
    await world.refused(world.store.sweep())
    assert await world.status(job) is JobStatus.IN_PROGRESS
    world.time = 6.5
    await world.store.sweep()
    world.time = 7.1
    await world.written(world.store.sweep())
    assert await world.status(job) is JobStatus.TIMED_OUT


async def test_many_ends_in_time_need_the_disk_once() -> None:
    world = World()
    for _ in range(20):
        await world.waiting(policy=Policy(execution_timeout_ms=5_000))
    await world.store.receive("e", "w", lease_s=1000, limit=20)
    world.time = 6.0
    await world.written(world.store.sweep())
    assert len(world.ended) == 20


async def test_a_runsync_that_is_not_told_of_needs_no_disk() -> None:
    world = World()
    new = NewJob(endpoint="e", input=b"1", sync=True)
    sent = await world.store.enqueue(new)
    (job,) = await world.store.receive("e", "w", lease_s=30)
    assert await world.store.ack(job.id, 1, output=b"1")
    assert await world.status(sent) is JobStatus.COMPLETED
    assert (world.disk.waiters, world.disk.saved) == ([], [])


async def test_a_runsync_with_a_webhook_is_on_disk_before_that_is_called() -> None:
    world = World()
    await world.waiting(sync=True, webhook="http://x/")
    (job,) = await world.store.receive("e", "w", lease_s=30)
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    assert world.ended == []
    await world.disk.write()
    assert await acking


async def test_publish_waits_for_the_disk_each_time_until_it_took_it() -> None:
    world = World()
    sent = await world.store.enqueue(NewJob(endpoint="e", input=b"1", sync=True))
    await world.refused(world.store.publish(sent.id))
    # Its id was not told, so it is not kept.
    assert world.disk.forgotten == [sent.id]
    publishing = await world.start(world.store.publish(sent.id))
    (job,) = await world.store.receive("e", "w", lease_s=30)
    # Its id may be told any moment: from here on its end has to be on disk as well.
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    assert (publishing.done(), acking.done()) == (False, False)
    await world.disk.write()
    await publishing
    assert await acking


async def test_a_refused_publish_leaves_an_end_that_is_on_its_way_on_disk() -> None:
    world = World()
    sent = await world.store.enqueue(NewJob(endpoint="e", input=b"1", sync=True))
    (job,) = await world.store.receive("e", "w", lease_s=30)
    publishing = await world.start(world.store.publish(sent.id))
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    # The end comes with the next batch.
    publish, end = world.disk.waiters
    world.disk.waiters = [publish]
    await world.disk.refuse()
    with pytest.raises(StoreUnavailable):
        await publishing
    world.disk.waiters = [end]
    await world.disk.write()
    assert await acking
    assert world.disk.forgotten == []


async def test_publish_has_the_end_on_disk_that_is_on_its_way_with_that_of_others() -> None:
    world = World()
    await world.waiting()
    sync = await world.store.enqueue(NewJob(endpoint="e", input=b"1", sync=True))
    purging = await world.start(world.store.purge("e"))
    publishing = await world.start(world.store.publish(sync.id))
    while world.disk.waiters:
        await world.disk.write()
    assert await purging == 2
    await publishing
    assert await world.status(sync) is JobStatus.CANCELLED
    assert [job.status for job in world.disk.saved if job.id == sync.id] == [JobStatus.CANCELLED]


async def test_delivered_results_do_not_pile_up() -> None:
    world = World()
    for _ in range(50):
        await world.store.enqueue(NewJob(endpoint="e", input=b"1", sync=True))
        (job,) = await world.store.receive("e", "w", lease_s=30)
        await world.store.ack(job.id, 1, output=b"1")
        world.time += 10
        await world.store.sweep()
    assert len(world.store._ledger) <= 6
    assert len(world.store._ledger._delivered) <= 6


async def test_time_is_kept_by_itself_though_the_disk_hangs() -> None:
    """A change that hangs must not hold up the leases of other jobs."""
    world = World()
    await world.store.start()
    stuck = await world.running(policy=Policy(execution_timeout_ms=5_000))
    other = await world.waiting()
    (other,) = await world.store.receive("e", "silent", lease_s=10)
    waiting = asyncio.create_task(world.store.wait_available("e"))
    world.disk.asked.clear()
    world.time = 6.0
    async with asyncio.timeout(10):
        await world.disk.asked.wait()
        world.time = 11.0
        await waiting
    assert await world.status(other) is JobStatus.IN_QUEUE
    assert await world.status(stuck) is JobStatus.IN_PROGRESS
    await world.disk.write()
    assert await world.status(stuck) is JobStatus.TIMED_OUT
    await world.store.close()


async def test_a_closing_store_waits_for_what_is_on_its_way() -> None:
    world = World()
    await world.store.start()
    job = await world.running()
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    closing = await world.start(world.store.close())
    assert not closing.done()
    await world.disk.write()
    await closing
    assert (await acking, len(world.ended)) == (True, 1)
