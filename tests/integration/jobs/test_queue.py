"""The contract of `JobQueue` and its limits, on each driver."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from jobs import JobStatus, MemoryJobStore, StoreFull
from tests.integration.jobs.stores import Stores, begin, job_of, new, soon, take
from tests.waiting import run_ready_tasks


async def test_longest_waiting_job_is_leased_first(stores: Stores) -> None:
    store = await stores.open()
    job_ids = []
    for number in range(5):
        job_ids.append((await store.enqueue(new(number))).id)
        stores.clock.tick(1)
    assert [(await take(store)).id for _ in job_ids] == job_ids


async def test_jobs_of_the_same_time_are_leased_in_the_order_of_enqueue(
    store: MemoryJobStore,
) -> None:
    job_ids = [(await store.enqueue(new(number))).id for number in range(20)]
    assert [job.id for job in await store.receive("e", "w", lease_s=1, limit=20)] == job_ids


async def test_low_priority_job_is_leased_after_all_others(stores: Stores) -> None:
    store = await stores.open()
    low = await store.enqueue(new("low", low_priority=True))
    stores.clock.tick(60)
    high = await store.enqueue(new("high"))
    stats = await store.stats("e")
    assert stats.oldest_queued_at == low.queued_at
    assert [(await take(store)).id for _ in "ab"] == [high.id, low.id]


async def test_nacked_job_keeps_its_place(stores: Stores) -> None:
    store = await stores.open()
    first = await store.enqueue(new(1))
    stores.clock.tick(1)
    second = await store.enqueue(new(2))
    leased_job = await take(store)
    assert await store.nack(leased_job.id, leased_job.attempt)
    assert [(await take(store)).id for _ in "ab"] == [first.id, second.id]


async def test_receive_respects_its_limit(store: MemoryJobStore) -> None:
    for number in range(5):
        await store.enqueue(new(number))
    assert len(await store.receive("e", "w", lease_s=1, limit=3)) == 3
    assert len(await store.receive("e", "w", lease_s=1, limit=3)) == 2
    assert await store.receive("e", "w", lease_s=1, limit=3) == []


async def test_receive_waits_for_a_job(store: MemoryJobStore) -> None:
    waiting = await begin(store.receive("e", "w", lease_s=1, wait_s=30))
    job = await store.enqueue(new())
    assert [each.id for each in await soon(waiting)] == [job.id]


async def test_receive_returns_nothing_after_its_wait(store: MemoryJobStore) -> None:
    assert await store.receive("e", "w", lease_s=1, wait_s=0.01) == []
    assert not store.list_endpoints()


async def test_receivers_are_served_in_order(store: MemoryJobStore) -> None:
    waiting = [await begin(store.receive("e", "w", lease_s=1, wait_s=30)) for _ in range(3)]
    job_ids = [(await store.enqueue(new(number))).id for number in range(3)]
    assert [(await soon(each))[0].id for each in waiting] == job_ids


@pytest.mark.parametrize("woken_first", [True, False], ids=["woken", "cancelled"])
async def test_receiver_cancelled_when_a_job_comes_leaves_it_to_the_next(
    store: MemoryJobStore, woken_first: bool
) -> None:
    cancelled = await begin(store.receive("e", "a", lease_s=1, wait_s=30))
    remaining = await begin(store.receive("e", "b", lease_s=1, wait_s=30))
    sender = asyncio.create_task(store.enqueue(new(sync=True)))
    if woken_first:
        await run_ready_tasks(1)
        cancelled.cancel()
    else:
        cancelled.cancel()
        await run_ready_tasks(1)
    assert [job.worker_id for job in await soon(remaining)] == ["b"]
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await sender


async def test_observer_does_not_delay_a_receiver(
    store: MemoryJobStore,
) -> None:
    """The local worker observes a job and then waits for a slot; an SDK worker takes it at once."""
    observer = await begin(store.wait_for_job("e"))
    ready = await begin(store.receive("e", "sdk", lease_s=1, wait_s=30))
    job = await store.enqueue(new())
    assert [each.id for each in await soon(ready)] == [job.id]
    await soon(observer)
    assert not store.has_ready_job("e")


async def test_has_ready_job_is_true_while_a_job_waits(store: MemoryJobStore) -> None:
    assert not store.has_ready_job("e")
    await store.enqueue(new())
    assert store.has_ready_job("e")
    await soon(asyncio.create_task(store.wait_for_job("e")))
    await take(store)
    assert not store.has_ready_job("e")


async def test_receive_leases_the_job_to_the_worker(stores: Stores) -> None:
    store = await stores.open()
    queued_job = await store.enqueue(new())
    stores.clock.tick(2)
    job = await take(store, "me")
    assert job == await store.get(queued_job.id)
    assert (job.status, job.attempt, job.worker_id) == (JobStatus.IN_PROGRESS, 1, "me")
    assert (job.delay_ms, job.execution_ms) == (2000, None)
    assert store.list_leased_jobs("me") == [job]
    assert store.list_leased_jobs("another") == []


async def test_job_with_an_expired_lease_is_leased_to_the_next_worker(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new())
    first = await take(store, "silent", lease_s=30)
    await stores.pass_time(store, 29)
    assert (await job_of(store, first.id)).status is JobStatus.IN_PROGRESS
    await stores.pass_time(store, 2)
    waiting = await job_of(store, first.id)
    assert (waiting.status, waiting.lost_attempts, waiting.worker_id) == (
        JobStatus.IN_QUEUE,
        1,
        None,
    )
    assert store.list_leased_jobs("silent") == []
    second = await take(store, "next")
    assert (second.id, second.attempt) == (first.id, 2)


async def test_extend_never_shortens_a_lease(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new())
    job = await take(store, lease_s=30)
    for _ in range(5):
        await stores.pass_time(store, 20)
        assert await store.extend(job.id, job.attempt, 30)
        assert await store.extend(job.id, job.attempt, 1)
    assert (await job_of(store, job.id)).status is JobStatus.IN_PROGRESS
    await stores.pass_time(store, 31)
    assert (await job_of(store, job.id)).status is JobStatus.IN_QUEUE


async def test_infinite_lease_does_not_expire(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new(execution_timeout_ms=10**9))
    job = await take(store, lease_s=math.inf)
    await stores.pass_time(store, 80_000)
    assert (await job_of(store, job.id)).status is JobStatus.IN_PROGRESS


async def test_calls_of_an_earlier_attempt_change_nothing(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new())
    old = await take(store, "old")
    await stores.pass_time(store, 31)
    now = await take(store, "new")
    assert not await store.ack(old.id, old.attempt, output=b'"late"')
    assert not await store.nack(old.id, old.attempt, "late")
    assert not await store.extend(old.id, old.attempt, 1000)
    assert not await store.save_progress(old.id, old.attempt, b'"late"')
    assert not await store.append_chunks(old.id, old.attempt, [b'"late"'])
    assert await store.get(now.id) == now
    assert await store.read_chunks(now.id, (0, 0), 0) == []
    assert await store.ack(now.id, now.attempt, output=b'"mine"')
    assert (await job_of(store, now.id)).output == b'"mine"'


async def test_ack_completes_a_job_with_its_output(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new())
    job = await take(store)
    stores.clock.tick(3)
    assert await store.ack(job.id, job.attempt, output=b"[1]")
    ended = await job_of(store, job.id)
    assert (ended.status, ended.output, ended.error) == (JobStatus.COMPLETED, b"[1]", None)
    assert (ended.execution_ms, ended.worker_id) == (3000, "w")
    assert store.list_leased_jobs("w") == []
    assert stores.ended == [ended]


async def test_ack_with_an_error_fails_the_job(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new())
    job = await take(store)
    assert await store.ack(job.id, job.attempt, error="it broke")
    ended = await job_of(store, job.id)
    assert (ended.status, ended.output, ended.error) == (JobStatus.FAILED, None, "it broke")
    assert ended.lost_attempts == 0


async def test_only_the_first_ack_counts(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new())
    job = await take(store)
    results = await asyncio.gather(
        store.ack(job.id, job.attempt, output=b"1"), store.ack(job.id, job.attempt, output=b"2")
    )
    assert list(results) == [True, False]
    assert not await store.ack(job.id, job.attempt, error="3")
    assert (await job_of(store, job.id)).output == b"1"
    assert len(stores.ended) == 1


async def test_job_lost_too_often_fails(stores: Stores) -> None:
    store = await stores.open(max_losses=3)
    queued_job = await store.enqueue(new())
    for number in range(3):
        assert (await job_of(store, queued_job.id)).status is JobStatus.IN_QUEUE
        job = await take(store, f"w{number}")
        assert await store.nack(job.id, job.attempt, "killed")
    dead = await job_of(store, queued_job.id)
    assert (dead.status, dead.attempt, dead.lost_attempts) == (JobStatus.FAILED, 3, 3)
    assert dead.error == "the job was started and lost 3 times; the last time: killed"
    assert store.count_by_status()[JobStatus.FAILED] == 1
    assert (await store.stats("e")).retried == 1


async def test_skip_lost_leaves_out_jobs_that_the_worker_lost(stores: Stores) -> None:
    """The worker may not have noticed the loss; its SDK sends chunks without the attempt number."""
    store = await stores.open()
    lost = await store.enqueue(new(execution_timeout_ms=60_000))
    job = await take(store, "w1")
    assert await store.reclaim_jobs("w1", "its connection broke off") == 1
    other = await store.enqueue(new())
    leased = await store.receive("e", "w1", lease_s=30, limit=5, skip_lost=True)
    assert [each.id for each in leased] == [other.id]
    assert await store.receive("e", "w1", lease_s=30, skip_lost=True) == []
    # The lost job is still ready, in its old place.
    assert store.has_ready_job("e")
    assert [each.id for each in await store.receive("e", "w2", lease_s=30, skip_lost=True)] == [
        lost.id
    ]
    assert await store.reclaim_jobs("w2", "and again", job_id=lost.id) == 1
    assert await store.receive("e", "w2", lease_s=30, skip_lost=True) == []
    # Without `skip_lost`: the worker reports that it runs nothing.
    (job,) = await store.receive("e", "w2", lease_s=30)
    assert await store.nack(job.id, job.attempt)
    stores.clock.tick(61)
    # The execution timeout of the lost attempt has passed.
    assert len(await store.receive("e", "w2", lease_s=30, skip_lost=True)) == 1


async def test_nack_without_reason_does_not_count_as_lost(stores: Stores) -> None:
    store = await stores.open(max_losses=1)
    await store.enqueue(new())
    for _ in range(5):
        job = await take(store)
        assert await store.nack(job.id, job.attempt)
    waiting = await job_of(store, job.id)
    assert (waiting.status, waiting.lost_attempts, waiting.attempt) == (JobStatus.IN_QUEUE, 0, 5)
    assert (await store.stats("e")).retried == 0


async def test_reclaim_jobs_takes_all_jobs_of_a_worker(stores: Stores) -> None:
    store = await stores.open(max_losses=2)
    for number in range(4):
        await store.enqueue(new(number))
        stores.clock.tick(1)
    second = await take(store, "a")
    await store.nack(second.id, second.attempt, "once before")
    leased = await store.receive("e", "gone", lease_s=30, limit=3)
    other = await take(store, "stays")
    assert await store.reclaim_jobs("gone", "it went away") == 3
    states = [(await job_of(store, job.id)).status for job in leased]
    assert states == [JobStatus.FAILED, JobStatus.IN_QUEUE, JobStatus.IN_QUEUE]
    assert store.list_leased_jobs("gone") == []
    assert store.list_leased_jobs("stays") == [other]
    assert await store.reclaim_jobs("gone", "again") == 0


async def test_jobs_that_their_workers_must_stop_are_reported(stores: Stores) -> None:
    store = await stores.open()
    for number in range(4):
        limits: dict[int, Any] = {2: {"execution_timeout_ms": 30_000}, 3: {"ttl_ms": 60_000}}
        await store.enqueue(new(number, **limits.get(number, {})))
        stores.clock.tick(0.1)
    done, cancelled, timed_out, expired = [
        await take(store, f"w{number}", lease_s=1e9) for number in range(4)
    ]
    assert await store.ack(done.id, 1, output=b"1")
    await store.cancel(cancelled.id)
    waiting = await store.enqueue(new(5))
    await store.cancel(waiting.id)
    await stores.pass_time(store, 61)
    assert [(job.id, job.worker_id, job.status) for job in stores.stopped] == [
        (cancelled.id, "w1", JobStatus.CANCELLED),
        (expired.id, "w3", JobStatus.IN_PROGRESS),
        (timed_out.id, "w2", JobStatus.TIMED_OUT),
    ]


async def test_stats_count_each_status(stores: Stores) -> None:
    store = await stores.open()
    assert (await store.stats("e")).counts.get(JobStatus.IN_QUEUE, 0) == 0
    for number in range(6):
        await store.enqueue(new(number))
        stores.clock.tick(1)
    done, broken, taken_back, runs = await store.receive("e", "w", lease_s=30, limit=4)
    await store.ack(done.id, 1, output=b"1")
    await store.ack(broken.id, 1, error="no")
    await store.cancel(taken_back.id)
    stats = await store.stats("e")
    assert {status: count for status, count in stats.counts.items() if count} == {
        JobStatus.COMPLETED: 1,
        JobStatus.FAILED: 1,
        JobStatus.CANCELLED: 1,
        JobStatus.IN_PROGRESS: 1,
        JobStatus.IN_QUEUE: 2,
    }
    assert stats.oldest_queued_at == runs.queued_at + 1


async def test_endpoints_are_independent(store: MemoryJobStore) -> None:
    a, b = await store.enqueue(new(endpoint="a")), await store.enqueue(new(endpoint="b"))
    assert (await take(store, endpoint="b")).id == b.id
    assert await store.receive("b", "w", lease_s=1) == []
    assert [job.id for job in await store.list_recent_jobs("a", 10)] == [a.id]
    assert sorted(store.list_endpoints()) == ["a", "b"]


async def test_synchronous_jobs_are_listed_only_where_they_are_asked_for(
    store: MemoryJobStore,
) -> None:
    job = await store.enqueue(new(endpoint="a", sync=True))
    assert await store.list_recent_jobs("a", 10) == []
    assert [each.id for each in await store.list_recent_jobs("a", 10, with_unpublished=True)] == [
        job.id
    ]


async def test_count_by_status_covers_all_endpoints(store: MemoryJobStore) -> None:
    for endpoint in ("a", "b", "b"):
        await store.enqueue(new(endpoint=endpoint))
    done = await take(store, endpoint="a")
    await store.ack(done.id, done.attempt, output=b"1")
    await store.cancel((await take(store, endpoint="b")).id)
    totals = store.count_by_status()
    assert {status: count for status, count in totals.items() if count} == {
        JobStatus.COMPLETED: 1,
        JobStatus.CANCELLED: 1,
        JobStatus.IN_QUEUE: 1,
    }
    for status in JobStatus:
        each = [(await store.stats(name)).counts[status] for name in store.list_endpoints()]
        assert totals[status] == sum(each)


async def test_reading_an_endpoint_does_not_create_it(store: MemoryJobStore) -> None:
    await store.stats("x")
    await store.purge("x")
    await store.list_recent_jobs("x", 1)
    assert not store.has_ready_job("x")
    waiting = await begin(store.receive("y", "w", lease_s=1, wait_s=30))
    assert store.list_endpoints() == ["y"]
    waiting.cancel()
    await run_ready_tasks()
    assert not store.list_endpoints()


async def test_enqueue_is_refused_above_max_jobs(stores: Stores) -> None:
    store = await stores.open(max_jobs=2)
    for number in range(2):
        await store.enqueue(new(number))
    with pytest.raises(StoreFull, match="2 jobs"):
        await store.enqueue(new())
    with pytest.raises(StoreFull, match="2 jobs"):
        await store.enqueue(new(sync=True))


async def test_jobs_being_written_count_towards_max_jobs(stores: Stores) -> None:
    store = await stores.open(max_jobs=2)
    results = await asyncio.gather(
        *(store.enqueue(new(number)) for number in range(5)), return_exceptions=True
    )
    refused = [each for each in results if isinstance(each, StoreFull)]
    assert len(refused) == 3
    assert sum((await store.stats("e")).counts.values()) == 2


async def test_enqueue_is_refused_above_max_bytes_until_jobs_are_removed(stores: Stores) -> None:
    store = await stores.open(max_bytes=1_000_000, retention_s=60)
    await store.enqueue(new("x" * 600_000))
    with pytest.raises(StoreFull, match="1,000,000 bytes"):
        await store.enqueue(new("x" * 600_000))
    job = await take(store)
    await store.ack(job.id, job.attempt, output=b"y" * 300_000)
    with pytest.raises(StoreFull):
        await store.enqueue(new("x" * 101_000))
    await stores.pass_time(store, 61)
    for _ in range(9):
        await store.enqueue(new("x" * 100_000))
    with pytest.raises(StoreFull):
        await store.enqueue(new("x" * 100_000))


async def test_delivered_results_make_room(stores: Stores) -> None:
    store = await stores.open(max_jobs=2)
    ids = []
    for number in range(2):
        ids.append((await store.enqueue(new(number, sync=True))).id)
        job = await take(store)
        await store.ack(job.id, job.attempt, output=b"1")
    await store.enqueue(new())
    assert await store.get(ids[0]) is None
    assert await store.get(ids[1]) is not None


async def test_result_of_a_retried_job_does_not_make_room(stores: Stores) -> None:
    store = await stores.open(max_jobs=1)
    queued_job = await store.enqueue(new(sync=True))
    await store.ack((await take(store)).id, 1, error="no")
    await store.retry(queued_job.id)
    await store.ack((await take(store)).id, 2, output=b"1")
    with pytest.raises(StoreFull):
        await store.enqueue(new())
    assert (await job_of(store, queued_job.id)).output == b"1"


async def test_result_of_a_published_job_does_not_make_room(stores: Stores) -> None:
    store = await stores.open(max_jobs=1)
    queued_job = await store.enqueue(new(sync=True))
    await store.publish(queued_job.id)
    job = await take(store)
    await store.ack(job.id, job.attempt, output=b"1")
    with pytest.raises(StoreFull):
        await store.enqueue(new())
    assert (await job_of(store, queued_job.id)).output == b"1"
