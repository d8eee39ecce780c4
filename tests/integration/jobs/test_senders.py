"""The operations of clients, and expiry, on each driver."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs import JobStatus, MemoryJobStore, NotRetryable
from jobs.memory.workers import STOP_RETENTION_S
from tests.integration.jobs.stores import Stores, begin, job_of, new, soon, take
from tests.waiting import run_ready_tasks


async def test_ids_have_the_format_of_runpod_and_are_unique(store: MemoryJobStore) -> None:
    queued_jobs = [await store.enqueue(new(sync=number % 2 == 0)) for number in range(60)]
    assert len({job.id for job in queued_jobs}) == len(queued_jobs)
    assert all(job.id.endswith("-u1") for job in queued_jobs)
    assert {job.id.startswith("sync-") for job in queued_jobs if job.sync} == {True}
    assert {job.id.startswith("sync-") for job in queued_jobs if not job.sync} == {False}


async def test_get_returns_the_enqueued_job(store: MemoryJobStore) -> None:
    queued_job = await store.enqueue(new('{"é": 1}', webhook="http://x/", extra=b'{"s3Config":{}}'))
    assert await store.get(queued_job.id) == queued_job
    assert (queued_job.input, queued_job.webhook, queued_job.extra) == (
        '{"é": 1}'.encode(),
        "http://x/",
        b'{"s3Config":{}}',
    )


async def test_operations_on_an_unknown_job(store: MemoryJobStore) -> None:
    assert await store.get("x") is None
    assert await store.wait("x", 60) is None
    assert await store.cancel("x") is None
    assert await store.retry("x") is None
    assert await store.read_chunks("x", (0, 0), 60) == []
    assert await store.take_chunks("x", 60) == []
    await store.publish("x")
    await store.mark_webhook_sent("x")
    assert not await store.ack("x", 1, output=b"1")
    assert not await store.nack("x", 1, "lost")
    assert not await store.extend("x", 1, 1)
    assert not await store.append_chunks("x", 1, [b"1"])
    assert not await store.save_progress("x", 1, b"1")


async def test_wait_returns_the_ended_job_to_all_waiters(store: MemoryJobStore) -> None:
    queued_job = await store.enqueue(new())
    waiting = [await begin(store.wait(queued_job.id, 60)) for _ in range(3)]
    job = await take(store)
    await run_ready_tasks()
    assert not any(each.done() for each in waiting)
    await store.ack(job.id, 1, output=b"1")
    ended = await job_of(store, queued_job.id)
    assert [await soon(each) for each in waiting] == [ended] * 3
    assert await store.wait(queued_job.id, 60) == ended


async def test_wait_returns_the_current_job_after_its_timeout(store: MemoryJobStore) -> None:
    queued_job = await store.enqueue(new())
    assert await store.wait(queued_job.id, 0.01) == queued_job
    assert await store.wait(queued_job.id, 0) == queued_job
    job = await take(store)
    assert await store.wait(queued_job.id, 0.01) == job


async def test_waiters_return_when_the_job_is_removed(stores: Stores) -> None:
    store = await stores.open()
    queued_job = await store.enqueue(new(ttl_ms=10_000))
    waiting = await begin(store.wait(queued_job.id, 60))
    reading = await begin(store.read_chunks(queued_job.id, (0, 0), 60))
    draining = await begin(store.take_chunks(queued_job.id, 60))
    await stores.pass_time(store, 11)
    assert await soon(waiting) is None
    assert await soon(reading) == []
    assert await soon(draining) == []


async def test_waiters_receive_an_end_that_is_removed_at_the_same_moment(
    stores: Stores,
) -> None:
    store = await stores.open(max_jobs=1)
    queued_job = await store.enqueue(new(sync=True))
    waiting = await begin(store.wait(queued_job.id, 60))
    job = await take(store)
    await store.append_chunks(job.id, 1, [b"1"])
    await run_ready_tasks()
    reading = await begin(store.read_chunks(queued_job.id, (1, 1), 60))
    await store.append_chunks(job.id, 1, [b"2"])
    await store.ack(job.id, 1, output=b'"out"')
    await store.enqueue(new(sync=True))
    assert await store.get(queued_job.id) is None
    ended = await soon(waiting)
    assert ended is not None
    assert ended.output == b'"out"'
    assert [chunk.value for chunk in await soon(reading)] == [b"2"]


async def test_cancel_ends_a_waiting_job(stores: Stores) -> None:
    store = await stores.open()
    queued_job = await store.enqueue(new())
    cancelled = await store.cancel(queued_job.id)
    assert cancelled == await store.get(queued_job.id)
    assert cancelled is not None
    assert cancelled.status is JobStatus.CANCELLED
    assert not store.has_ready_job("e")
    assert await store.receive("e", "w", lease_s=1) == []
    assert stores.ended == [cancelled]


async def test_cancel_ends_a_running_job_and_sends_one_stop(
    store: MemoryJobStore,
) -> None:
    await store.enqueue(new())
    job = await take(store, "w")
    poll = await begin(store.receive_stops("w", 60))
    other = await begin(store.receive_stops("v", 60))
    await store.cancel(job.id)
    assert await soon(poll) == [job.id]
    assert await store.receive_stops("w", 0) == []
    assert not other.done()
    other.cancel()
    assert not await store.ack(job.id, 1, output=b"1")
    assert (await job_of(store, job.id)).status is JobStatus.CANCELLED


async def test_cancel_does_not_change_an_ended_job(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new())
    job = await take(store)
    await store.ack(job.id, 1, output=b"1")
    assert await store.cancel(job.id) == await store.get(job.id)
    assert (await job_of(store, job.id)).status is JobStatus.COMPLETED
    assert await store.receive_stops("w", 0) == []
    assert len(stores.ended) == 1


@pytest.mark.parametrize("cause", ["cancel", "executionTimeout", "ttl"])
async def test_stop_is_repeated_for_a_job_that_was_just_leased(stores: Stores, cause: str) -> None:
    """The SDK ignores the stop of a job that it has received but not started."""
    store = await stores.open()
    limits: dict[str, Any] = {"ttl_ms": 300} if cause == "ttl" else {"execution_timeout_ms": 300}
    queued_job = await store.enqueue(new(**limits))
    await take(store, "w")
    if cause == "cancel":
        await store.cancel(queued_job.id)
    else:
        await stores.pass_time(store, 0.3)
    assert await store.receive_stops("w", 0) == [queued_job.id]
    await stores.pass_time(store, 0.4)
    assert await store.receive_stops("w", 0) == []
    await stores.pass_time(store, 0.2)
    assert await store.receive_stops("w", 0) == [queued_job.id]
    await stores.pass_time(store, 60)
    assert await store.receive_stops("w", 0) == []


async def test_stop_is_sent_once_for_a_started_job(stores: Stores) -> None:
    store = await stores.open()
    queued_job = await store.enqueue(new())
    await take(store, "w")
    await stores.pass_time(store, 0.6)
    await store.cancel(queued_job.id)
    assert await store.receive_stops("w", 0) == [queued_job.id]
    await stores.pass_time(store, 60)
    assert await store.receive_stops("w", 0) == []


@pytest.mark.parametrize("later_event", ["cancel", "purge", "ttl", "taken again"])
async def test_worker_that_lost_a_job_receives_its_stop(stores: Stores, later_event: str) -> None:
    """Its lease has expired, but its handler may run the job for hours without knowing."""
    store = await stores.open()
    queued_job = await store.enqueue(new(ttl_ms=40_000))
    await take(store, "slow", lease_s=10)
    await stores.pass_time(store, 11)
    if later_event == "taken again":
        await take(store, "other")
    if later_event == "ttl":
        await stores.pass_time(store, 30)
    elif later_event == "purge":
        await store.purge("e")
    else:
        await store.cancel(queued_job.id)
    assert await store.receive_stops("slow", 0) == [queued_job.id]
    assert await store.receive_stops("other", 0) == (
        [queued_job.id] if later_event == "taken again" else []
    )


async def test_worker_that_lost_a_job_long_ago_receives_no_stop(stores: Stores) -> None:
    store = await stores.open()
    queued_job = await store.enqueue(new(execution_timeout_ms=5_000))
    await take(store, "gone", lease_s=1)
    await stores.pass_time(store, 2)
    await stores.pass_time(store, 6)
    await store.cancel(queued_job.id)
    assert await store.receive_stops("gone", 0) == []


async def test_concurrent_ack_and_cancel_end_the_job_once(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new())
    job = await take(store)
    acked, _ = await asyncio.gather(store.ack(job.id, 1, output=b"1"), store.cancel(job.id))
    ended = await job_of(store, job.id)
    assert acked
    assert (ended.status, stores.ended) == (JobStatus.COMPLETED, [ended])


@pytest.mark.parametrize("outcome", ["failed", "timed out"])
async def test_retry_queues_a_failed_job_under_its_id(stores: Stores, outcome: str) -> None:
    """`/retry/{id}`: only FAILED and TIMED_OUT, same id -> IN_QUEUE, drops the output."""
    store = await stores.open()
    queued_job = await store.enqueue(new(execution_timeout_ms=5_000, webhook="http://x/"))
    job = await take(store, lease_s=1000)
    await store.append_chunks(job.id, 1, [b"1"])
    await store.save_progress(job.id, 1, b'"half"')
    if outcome == "failed":
        await store.ack(job.id, 1, output=b'"some"', error="no")
    else:
        await stores.pass_time(store, 6)
    await store.mark_webhook_sent(job.id)
    stores.clock.tick(10)
    retried = await store.retry(queued_job.id)
    assert retried == await store.get(queued_job.id)
    assert retried is not None
    assert (retried.status, retried.retries, retried.lost_attempts) == (JobStatus.IN_QUEUE, 1, 0)
    assert (retried.output, retried.error, retried.progress, retried.webhook_sent) == (
        None,
        None,
        b"",
        0,
    )
    assert (retried.queued_at, retried.created_at) == (stores.clock.now(), queued_job.created_at)
    assert await store.read_chunks(queued_job.id, (0, 0), 0) == []
    assert (await store.stats("e")).retried == 1
    assert not await store.ack(queued_job.id, 1, output=b'"late"')
    job = await take(store)
    assert job.attempt == 2
    await store.ack(job.id, 2, output=b'"well"')
    assert (await job_of(store, queued_job.id)).output == b'"well"'
    # Retention counts from the second end, not from the first.
    await stores.pass_time(store, 30 * 60 - 5)
    assert await store.get(queued_job.id) is not None


async def test_new_lease_drops_the_stop_of_the_earlier_attempt(stores: Stores) -> None:
    """A stop contains only the job id, so a late one would stop the wrong attempt."""
    store = await stores.open()
    await store.enqueue(new(execution_timeout_ms=5_000))
    job = await take(store, "w", lease_s=1000)
    await stores.pass_time(store, 6)
    await store.retry(job.id)
    retried = await take(store, "w", lease_s=1000)
    assert (retried.id, retried.attempt) == (job.id, 2)
    assert await store.receive_stops("w", 0) == []


@pytest.mark.parametrize("status", ["IN_QUEUE", "IN_PROGRESS", "COMPLETED", "CANCELLED"])
async def test_retry_refuses_a_job_that_did_not_fail(store: MemoryJobStore, status: str) -> None:
    queued_job = await store.enqueue(new())
    if status == "CANCELLED":
        await store.cancel(queued_job.id)
    elif status != "IN_QUEUE":
        await take(store)
        if status == "COMPLETED":
            await store.ack(queued_job.id, 1, output=b"1")
    with pytest.raises(NotRetryable, match=f"this one is {status}"):
        await store.retry(queued_job.id)
    assert (await job_of(store, queued_job.id)).status == status


async def test_purge_cancels_only_waiting_jobs_of_the_endpoint(stores: Stores) -> None:
    """`/purge-queue`: pending only."""
    store = await stores.open()
    for number in range(4):
        await store.enqueue(new(number))
    other = await store.enqueue(new(endpoint="other"))
    runs = await take(store)
    assert await store.purge("e") == 3
    assert await store.purge("e") == 0
    assert not store.has_ready_job("e")
    assert await store.get(runs.id) == runs
    assert await store.get(other.id) == other
    assert [job.status for job in stores.ended] == [JobStatus.CANCELLED] * 3


async def test_reset_stops_workers_and_removes_only_the_jobs_of_the_endpoint(
    stores: Stores,
) -> None:
    store = await stores.open()
    for number in range(4):
        await store.enqueue(new(number))
    sync = await store.enqueue(new(sync=True))
    other = await store.enqueue(new(endpoint="other"))
    completed, running = await take(store), await take(store, "busy")
    await store.ack(completed.id, 1, output=b"1")
    waiting = await begin(store.wait(running.id, 60))
    assert await store.reset("e") == 5
    assert (await soon(waiting)) == running.replace(
        status=JobStatus.CANCELLED, ended_at=stores.clock.now()
    )
    assert await store.receive_stops("busy", 0) == [running.id]
    assert not await store.ack(running.id, 1, output=b"2")
    assert await store.get(completed.id) is None
    assert await store.get(sync.id) is None
    assert await store.reset("e") == 0
    assert await store.list_recent_jobs("e", 9) == []
    statuses = [job.status for job in stores.ended]
    assert statuses == [JobStatus.COMPLETED, *[JobStatus.CANCELLED] * 4]
    assert store.list_endpoints() == ["other"]
    if stores.driver == "memory":
        return
    await stores.close()
    store = await stores.open()
    assert [job.id for job in await store.list_recent_jobs("other", 9)] == [other.id]
    assert await store.list_recent_jobs("e", 9) == []


async def test_reset_waits_for_the_end_of_a_job_that_is_being_written(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new())
    job = await take(store)
    ending = asyncio.create_task(store.ack(job.id, 1, output=b"1"))
    await run_ready_tasks(1)
    assert await store.reset("e") == 1
    assert await soon(ending)
    assert [job.status for job in stores.ended] == [JobStatus.COMPLETED]


async def test_removed_job_is_stopped_and_gone_after_a_restart(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new(1))
    running = await take(store, "busy")
    kept = await store.enqueue(new(2))
    assert await store.remove(running.id)
    assert await store.receive_stops("busy", 0) == [running.id]
    assert await store.get(running.id) is None
    assert not await store.remove(running.id)
    assert [job.status for job in stores.ended] == [JobStatus.CANCELLED]
    assert await store.get(kept.id) == kept
    if stores.driver == "memory":
        return
    await stores.close()
    store = await stores.open()
    assert [job.id for job in await store.list_recent_jobs("e", 9)] == [kept.id]


async def test_job_that_is_retried_during_a_reset_stays(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new(1))
    failed = await take(store)
    await store.ack(failed.id, 1, error="no")
    await store.enqueue(new(2))
    resetting = asyncio.create_task(store.reset("e"))
    await run_ready_tasks(1)
    retried = asyncio.create_task(store.retry(failed.id))
    assert await soon(resetting) == 1
    assert await soon(retried) is not None
    assert (await take(store)).id == failed.id


async def test_unreceived_stops_expire(stores: Stores) -> None:
    store = await stores.open()
    for number in range(3):
        await store.enqueue(new(number))
        job = await take(store, f"w{number}")
        await store.cancel(job.id)
    await stores.pass_time(store, STOP_RETENTION_S - 1)
    assert len(await store.receive_stops("w0", 0)) == 1
    await stores.pass_time(store, 2)
    assert await store.receive_stops("w1", 0) == []
    assert len(store._state.workers) == 0


@pytest.mark.parametrize("running", [False, True])
async def test_job_is_removed_after_its_ttl(stores: Stores, running: bool) -> None:
    """ttl is hard: a running job is removed too, and its status is 404."""
    store = await stores.open()
    queued_job = await store.enqueue(new(ttl_ms=10_000))
    if running:
        await take(store, "w", lease_s=1000)
    await stores.pass_time(store, 9)
    assert await store.get(queued_job.id) is not None
    await stores.pass_time(store, 2)
    assert await store.get(queued_job.id) is None
    assert not store.has_ready_job("e")
    assert await store.receive_stops("w", 0) == ([queued_job.id] if running else [])
    assert not await store.ack(queued_job.id, 1, output=b"1")
    assert store.list_leased_jobs("w") == []
    assert stores.ended == []
    assert store.list_endpoints() == []


async def test_ttl_does_not_apply_to_an_ended_job(stores: Stores) -> None:
    store = await stores.open()
    queued_job = await store.enqueue(new(ttl_ms=10_000))
    await take(store)
    await store.ack(queued_job.id, 1, output=b"1")
    await stores.pass_time(store, 100)
    assert await store.get(queued_job.id) is not None


async def test_job_times_out_after_its_execution_timeout(stores: Stores) -> None:
    """executionTimeout -> TIMED_OUT, and its worker receives a stop."""
    store = await stores.open()
    await store.enqueue(new(execution_timeout_ms=5_000))
    stores.clock.tick(100)
    job = await take(store, "w", lease_s=1000)
    await stores.pass_time(store, 4)
    assert (await job_of(store, job.id)).status is JobStatus.IN_PROGRESS
    await stores.pass_time(store, 2)
    ended = await job_of(store, job.id)
    assert (ended.status, ended.execution_ms) == (JobStatus.TIMED_OUT, 6000)
    assert ended.error == "the job ran for more than 5 s (executionTimeout)"
    assert await store.receive_stops("w", 0) == [job.id]
    assert stores.ended == [ended]


async def test_execution_timeout_starts_with_each_attempt(stores: Stores) -> None:
    store = await stores.open()
    await store.enqueue(new(execution_timeout_ms=5_000))
    job = await take(store)
    await stores.pass_time(store, 4)
    await store.nack(job.id, job.attempt)
    job = await take(store)
    await stores.pass_time(store, 4)
    assert (await job_of(store, job.id)).status is JobStatus.IN_PROGRESS


async def test_lease_and_timeout_expiring_together_end_the_job_once(stores: Stores) -> None:
    store = await stores.open(max_losses=1)
    await store.enqueue(new(execution_timeout_ms=5_000))
    job = await take(store, lease_s=5)
    await stores.pass_time(store, 6)
    assert stores.ended == [await store.get(job.id)]


@pytest.mark.parametrize("lease_s", [5, 1000], ids=["lease", "run"])
async def test_job_removed_when_it_would_end_does_not_block_others(
    stores: Stores, lease_s: float
) -> None:
    store = await stores.open(max_losses=1)
    await store.enqueue(new(execution_timeout_ms=5_000, ttl_ms=5_050))
    await store.enqueue(new(execution_timeout_ms=5_000))
    brief, other = await store.receive("e", "w", lease_s=lease_s, limit=2)
    await stores.pass_time(store, 5.1)
    assert await store.get(brief.id) is None
    assert stores.ended == [await store.get(other.id)]


async def test_results_are_removed_after_their_retention(stores: Stores) -> None:
    """The result of a /run is retained for 30 minutes, that of a /runsync for one."""
    store = await stores.open()
    run, sync = await store.enqueue(new()), await store.enqueue(new(sync=True))
    for job in await store.receive("e", "w", lease_s=30, limit=2):
        await store.ack(job.id, 1, output=b"1")
    await stores.pass_time(store, 59)
    assert await store.get(sync.id) is not None
    await stores.pass_time(store, 2)
    assert await store.get(sync.id) is None
    await stores.pass_time(store, 30 * 60 - 62)
    assert await store.get(run.id) is not None
    await stores.pass_time(store, 2)
    assert await store.get(run.id) is None
    assert store.list_endpoints() == []


async def test_list_recent_jobs_returns_published_jobs_newest_first(
    store: MemoryJobStore,
) -> None:
    ids = [(await store.enqueue(new(number))).id for number in range(4)]
    await store.enqueue(new(sync=True))
    published = await store.enqueue(new(sync=True))
    await store.publish(published.id)
    assert [job.id for job in await store.list_recent_jobs("e", 3)] == [
        published.id,
        ids[3],
        ids[2],
    ]


async def test_all_ways_to_end_release_all_counts(stores: Stores) -> None:
    """However a job ends, its jobs, bytes and leases are released."""
    store = await stores.open(max_losses=2, retention_s=60)
    for number in range(6):
        await store.enqueue(new(number, webhook="http://x/" if number else None))
    outcomes: list[Any] = await store.receive("e", "w", lease_s=30, limit=6)
    for job in outcomes:
        await store.append_chunks(job.id, 1, [b"12345", b"6"])
        await store.save_progress(job.id, 1, b"12345678")
    done, failed, cancelled, lost, back, _silent = outcomes
    await store.ack(done.id, 1, output=b"123")
    await store.ack(failed.id, 1, error="no")
    await store.retry(failed.id)
    await store.cancel(cancelled.id)
    await store.nack(lost.id, 1, "lost")
    await store.nack(back.id, 1)
    await stores.pass_time(store, 31)
    for job in await store.receive("e", "w", lease_s=30, limit=6):
        await store.append_chunks(job.id, job.attempt, [b"x"])
    await store.reclaim_jobs("w", "gone")
    await store.purge("e")
    await stores.pass_time(store, STOP_RETENTION_S)
    assert (len(store._state.table), store._state.table.total_bytes) == (0, 0)
    assert (store.list_endpoints(), len(store._state.workers)) == ([], 0)
