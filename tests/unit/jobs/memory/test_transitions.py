"""Transitions of jobs while they are being written, and when the disk refuses them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from jobs import Job, JobStatus, Limits, MemoryJobStore, NewJob, Policy, StoreUnavailable
from tests.unit.jobs.journals import ManualJournal
from tests.waiting import run_ready_tasks

T = TypeVar("T")


class World:
    """A store with a journal and a clock that the test controls."""

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
        """Start an operation and let it run until it waits for the disk."""
        task = asyncio.create_task(work)
        await run_ready_tasks(5)
        return task

    async def written(self, work: Coroutine[Any, Any, T]) -> T:
        task = await self.start(work)
        await self.disk.accept_writes()
        return await task

    async def refused(self, work: Coroutine[Any, Any, Any]) -> None:
        task = await self.start(work)
        await self.disk.refuse_writes()
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


async def test_new_job_is_invisible_until_it_is_on_disk() -> None:
    world = World()
    sending = await world.start(world.store.enqueue(NewJob(endpoint="e", input=b"1")))
    assert await world.store.list_recent_jobs("e", 10) == []
    assert not world.store.has_ready_job("e")
    assert world.store.list_endpoints() == []
    await world.disk.accept_writes()
    assert await world.store.list_recent_jobs("e", 10) == [await sending]


async def test_refused_job_leaves_no_state() -> None:
    world = World(max_jobs=1)
    for _ in range(3):
        await world.refused(world.store.enqueue(NewJob(endpoint="e", input=b"1")))
    assert world.disk.deleted == [job.id for job in world.disk.saved]
    assert (len(world.store._state.table), world.store._state.table.total_bytes) == (0, 0)
    await world.waiting()


async def test_end_becomes_visible_only_when_it_is_on_disk() -> None:
    world = World()
    job = await world.running()
    waiting = await world.start(world.store.wait(job.id, 60))
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    assert await world.status(job) is JobStatus.IN_PROGRESS
    assert world.ended == []
    assert not waiting.done()
    await world.disk.accept_writes()
    assert await acking
    assert (await waiting) == world.ended[0]


async def test_refused_ack_changes_nothing_and_can_be_repeated() -> None:
    world = World()
    job = await world.running()
    await world.refused(world.store.ack(job.id, 1, output=b"1"))
    assert await world.store.get(job.id) == job
    assert world.disk.saved[-1] == job
    assert world.ended == []
    assert await world.store.save_progress(job.id, 1, b'"going on"')
    assert await world.written(world.store.ack(job.id, 1, output=b"2"))
    assert world.ended[0].output == b"2"


async def test_repeated_ack_waits_for_the_first() -> None:
    world = World()
    job = await world.running()
    first = await world.start(world.store.ack(job.id, 1, output=b"1"))
    second = await world.start(world.store.ack(job.id, 1, output=b"1"))
    assert not second.done()
    await world.disk.accept_writes()
    assert (await first, await second) == (True, False)


async def test_second_ack_succeeds_when_the_first_is_refused() -> None:
    world = World()
    job = await world.running()
    first = await world.start(world.store.ack(job.id, 1, output=b"1"))
    second = await world.start(world.store.ack(job.id, 1, output=b"2"))
    await world.disk.refuse_writes()
    with pytest.raises(StoreUnavailable):
        await first
    await world.disk.accept_writes()
    assert await second
    assert [each.output for each in world.ended] == [b"2"]


async def test_ack_of_an_earlier_attempt_returns_immediately() -> None:
    world = World()
    job = await world.running()
    await world.store.nack(job.id, 1)
    (job,) = await world.store.receive("e", "w", lease_s=30)
    acking = await world.start(world.store.ack(job.id, 2, output=b"1"))
    late = await world.start(world.store.ack(job.id, 1, output=b"2"))
    assert late.done()
    assert not await late
    await world.disk.accept_writes()
    assert await acking


async def test_job_in_transition_does_not_change_otherwise() -> None:
    world = World(max_losses=1)
    job = await world.running(policy=Policy(execution_timeout_ms=5_000, ttl_ms=20_000))
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    assert not await world.store.nack(job.id, 1, "lost")
    assert not await world.store.save_progress(job.id, 1, b"1")
    assert not await world.store.append_chunks(job.id, 1, [b"1"])
    assert await world.store.reclaim_jobs("w", "gone") == 0
    world.time = 100.0
    await world.store.sweep()
    assert await world.status(job) is JobStatus.IN_PROGRESS
    await world.disk.accept_writes()
    assert await acking
    assert await world.status(job) is JobStatus.COMPLETED
    world.time = 101.0
    await world.store.sweep()
    assert await world.status(job) is JobStatus.COMPLETED


async def test_lease_can_be_extended_while_the_end_is_being_written() -> None:
    """After a refused `ack` the lease is still valid."""
    world = World()
    job = await world.running()
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    world.time = 25.0
    assert await world.store.extend(job.id, 1, 30)
    world.time = 35.0
    await world.store.sweep()
    await world.disk.refuse_writes()
    with pytest.raises(StoreUnavailable):
        await acking
    world.time = 40.0
    await world.store.sweep()
    assert await world.status(job) is JobStatus.IN_PROGRESS


async def test_job_is_not_leased_while_its_cancellation_is_being_written() -> None:
    world = World()
    first, second = await world.waiting(), await world.waiting()
    cancelling = await world.start(world.store.cancel(first.id))
    assert await world.status(first) is JobStatus.IN_QUEUE
    receiving = await world.start(world.store.receive("e", "w", lease_s=30, wait_s=60, limit=5))
    assert [job.id for job in await receiving] == [second.id]
    await world.disk.refuse_writes()
    with pytest.raises(StoreUnavailable):
        await cancelling
    # The job is back in its old place in the queue.
    assert [job.id for job in await world.store.receive("e", "w", lease_s=30)] == [first.id]


async def test_refused_cancel_wakes_a_waiting_worker() -> None:
    world = World()
    job = await world.waiting()
    cancelling = await world.start(world.store.cancel(job.id))
    receiving = await world.start(world.store.receive("e", "w", lease_s=30, wait_s=60))
    assert not receiving.done()
    await world.disk.refuse_writes()
    assert [each.id for each in await receiving] == [job.id]
    with pytest.raises(StoreUnavailable):
        await cancelling


async def test_worker_receives_stop_only_when_the_end_is_on_disk() -> None:
    """A worker that has stopped sends nothing more, so a job with a refused end would hang."""
    world = World()
    job = await world.running()
    cancelling = await world.start(world.store.cancel(job.id))
    assert await world.store.receive_stops("w", 0) == []
    await world.disk.refuse_writes()
    with pytest.raises(StoreUnavailable):
        await cancelling
    assert await world.store.receive_stops("w", 0) == []
    await world.written(world.store.cancel(job.id))
    assert await world.store.receive_stops("w", 0) == [job.id]


async def test_transition_continues_when_its_caller_is_cancelled() -> None:
    world = World()
    job = await world.running()
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    acking.cancel()
    await asyncio.gather(acking, return_exceptions=True)
    await world.disk.accept_writes()
    assert await world.status(job) is JobStatus.COMPLETED


async def test_cancel_and_retry_wait_for_the_transition_in_progress() -> None:
    world = World()
    job = await world.running()
    acking = await world.start(world.store.ack(job.id, 1, error="no"))
    cancelling = await world.start(world.store.cancel(job.id))
    retrying = await world.start(world.store.retry(job.id))
    await world.disk.accept_writes()
    cancelled = await cancelling
    assert cancelled is not None
    assert (await acking, cancelled.status) == (True, JobStatus.FAILED)
    await world.disk.accept_writes()
    retried = await retrying
    assert retried is not None
    assert retried.status is JobStatus.IN_QUEUE


async def test_cancel_returns_none_if_the_job_was_removed_meanwhile() -> None:
    world = World()
    job = await world.running(policy=Policy(ttl_ms=10_000))
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    record = world.store._state.table.find(job.id)
    assert record is not None
    assert record.transition is not None
    # As expiry may do, in the loop iteration that undoes the transition, before its waiters run.
    record.transition.add_done_callback(lambda _: world.store._state.table.remove(record))
    cancelling = await world.start(world.store.cancel(job.id))
    await world.disk.refuse_writes()
    with pytest.raises(StoreUnavailable):
        await acking
    assert await cancelling is None


async def test_refused_retry_leaves_the_failed_job_unchanged() -> None:
    world = World()
    job = await world.running()
    await world.store.append_chunks(job.id, 1, [b"1"])
    await world.written(world.store.ack(job.id, 1, error="no"))
    failed = await world.store.get(job.id)
    await world.refused(world.store.retry(job.id))
    assert await world.store.get(job.id) == failed
    assert len(await world.store.read_chunks(job.id, (0, 0), 0)) == 1
    assert not world.store.has_ready_job("e")


async def test_reclaim_requeues_jobs_even_if_the_disk_refuses_the_failed_ones() -> None:
    world = World(max_losses=2)
    often = await world.running()
    await world.store.nack(often.id, 1, "once")
    await world.waiting()
    often, other = sorted(
        await world.store.receive("e", "gone", lease_s=30, limit=2),
        key=lambda job: -job.lost_attempts,
    )
    await world.refused(world.store.reclaim_jobs("gone", "went away"))
    assert await world.status(often) is JobStatus.IN_PROGRESS
    assert await world.status(other) is JobStatus.IN_QUEUE


async def test_refused_timeout_is_retried() -> None:
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


async def test_simultaneous_timeouts_need_one_write() -> None:
    world = World()
    for _ in range(20):
        await world.waiting(policy=Policy(execution_timeout_ms=5_000))
    await world.store.receive("e", "w", lease_s=1000, limit=20)
    world.time = 6.0
    await world.written(world.store.sweep())
    assert len(world.ended) == 20


async def test_unpublished_runsync_is_not_written() -> None:
    world = World()
    new = NewJob(endpoint="e", input=b"1", sync=True)
    sent = await world.store.enqueue(new)
    (job,) = await world.store.receive("e", "w", lease_s=30)
    assert await world.store.ack(job.id, 1, output=b"1")
    assert await world.status(sent) is JobStatus.COMPLETED
    assert (world.disk.waiters, world.disk.saved) == ([], [])


async def test_runsync_with_webhook_is_on_disk_before_the_webhook_is_called() -> None:
    world = World()
    await world.waiting(sync=True, webhook="http://x/")
    (job,) = await world.store.receive("e", "w", lease_s=30)
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    assert world.ended == []
    await world.disk.accept_writes()
    assert await acking


async def test_publish_can_be_repeated_until_the_disk_accepts_it() -> None:
    world = World()
    sent = await world.store.enqueue(NewJob(endpoint="e", input=b"1", sync=True))
    await world.refused(world.store.publish(sent.id))
    # Its id was not sent, so it is deleted from the journal.
    assert world.disk.deleted == [sent.id]
    publishing = await world.start(world.store.publish(sent.id))
    (job,) = await world.store.receive("e", "w", lease_s=30)
    # Its id may be sent at any moment, so its end must be written as well.
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    assert (publishing.done(), acking.done()) == (False, False)
    await world.disk.accept_writes()
    await publishing
    assert await acking


async def test_refused_publish_does_not_delete_an_end_that_is_being_written() -> None:
    world = World()
    sent = await world.store.enqueue(NewJob(endpoint="e", input=b"1", sync=True))
    (job,) = await world.store.receive("e", "w", lease_s=30)
    publishing = await world.start(world.store.publish(sent.id))
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    # The end is in the next batch.
    publish, end = world.disk.waiters
    world.disk.waiters = [publish]
    await world.disk.refuse_writes()
    with pytest.raises(StoreUnavailable):
        await publishing
    world.disk.waiters = [end]
    await world.disk.accept_writes()
    assert await acking
    assert world.disk.deleted == []


async def test_publish_writes_an_end_that_is_in_a_transition_with_other_jobs() -> None:
    world = World()
    await world.waiting()
    sync = await world.store.enqueue(NewJob(endpoint="e", input=b"1", sync=True))
    purging = await world.start(world.store.purge("e"))
    publishing = await world.start(world.store.publish(sync.id))
    while world.disk.waiters:
        await world.disk.accept_writes()
    assert await purging == 2
    await publishing
    assert await world.status(sync) is JobStatus.CANCELLED
    assert [job.status for job in world.disk.saved if job.id == sync.id] == [JobStatus.CANCELLED]


async def test_reset_changes_nothing_when_the_disk_refuses_the_cancellations() -> None:
    world = World()
    running, waiting = await world.running(), await world.waiting()
    await world.refused(world.store.reset("e"))
    assert await world.status(running) is JobStatus.IN_PROGRESS
    assert await world.status(waiting) is JobStatus.IN_QUEUE
    assert world.store.has_ready_job("e")
    assert (world.ended, world.disk.deleted) == ([], [])
    assert await world.store.receive_stops("w", 0) == []


async def test_reset_returns_when_the_removal_is_on_disk() -> None:
    world = World()
    running = await world.running()
    resetting = await world.start(world.store.reset("e"))
    await world.disk.accept_writes()
    assert world.disk.deleted == [running.id]
    assert await world.status(running) is None
    assert not resetting.done()
    await world.disk.refuse_writes()
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await resetting


async def test_delivered_results_do_not_accumulate() -> None:
    world = World()
    for _ in range(50):
        await world.store.enqueue(NewJob(endpoint="e", input=b"1", sync=True))
        (job,) = await world.store.receive("e", "w", lease_s=30)
        await world.store.ack(job.id, 1, output=b"1")
        world.time += 10
        await world.store.sweep()
    assert len(world.store._state.table) <= 6
    assert len(world.store._state.table._delivered) <= 6


async def test_leases_expire_while_the_disk_hangs() -> None:
    """A transition that hangs must not delay the leases of other jobs."""
    world = World()
    await world.store.start()
    stuck = await world.running(policy=Policy(execution_timeout_ms=5_000))
    other = await world.waiting()
    (other,) = await world.store.receive("e", "silent", lease_s=10)
    waiting = asyncio.create_task(world.store.wait_for_job("e"))
    world.disk.flush_called.clear()
    world.time = 6.0
    async with asyncio.timeout(30):
        await world.disk.flush_called.wait()
        world.time = 11.0
        await waiting
    assert await world.status(other) is JobStatus.IN_QUEUE
    assert await world.status(stuck) is JobStatus.IN_PROGRESS
    await world.disk.accept_writes()
    assert await world.status(stuck) is JobStatus.TIMED_OUT
    await world.store.close()


async def test_close_waits_for_transitions() -> None:
    world = World()
    await world.store.start()
    job = await world.running()
    acking = await world.start(world.store.ack(job.id, 1, output=b"1"))
    closing = await world.start(world.store.close())
    assert not closing.done()
    await world.disk.accept_writes()
    await closing
    assert (await acking, len(world.ended)) == (True, 1)
