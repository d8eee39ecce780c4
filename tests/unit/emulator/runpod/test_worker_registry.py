"""How it is known that a worker has gone, and what becomes of its jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.exceptions import HTTPException

import emulator.runpod.worker_registry
from emulator.runpod.dispatcher import JobDispatcher
from emulator.runpod.remote_worker import RemoteWorker
from emulator.runpod.worker_registry import WorkerRegistry
from jobs import Job, JobStatus, MemoryJobStore, NewJob, StoreUnavailable
from tests.waiting import poll_until, wait_until

TICK_S = 0.01
GRACE_S = 0.1
LEASE_S = 0.3


@pytest.fixture
async def store() -> AsyncIterator[MemoryJobStore]:
    found = MemoryJobStore()
    await found.start()
    yield found
    await found.close()


@pytest.fixture
async def worker_registry(
    store: MemoryJobStore, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[WorkerRegistry]:
    monkeypatch.setattr(emulator.runpod.worker_registry, "_CHECK_INTERVAL_S", TICK_S)
    monkeypatch.setattr(emulator.runpod.worker_registry, "_MISSING_CONFIRM_S", 0.1)
    monkeypatch.setattr(emulator.runpod.worker_registry, "_IDLE_EXPIRY_S", 0.2)
    monkeypatch.setattr("emulator.runpod.remote_worker._FIRST_STOP_POLL_TIMEOUT_S", 0.02)
    monkeypatch.setattr("emulator.runpod.remote_worker._STOP_POLL_TIMEOUT_S", 0.2)
    found = WorkerRegistry(store, lease_s=LEASE_S, grace_s=GRACE_S)
    found.start()
    yield found
    await found.close()


async def lease(store: MemoryJobStore, worker: RemoteWorker) -> Job:
    await store.enqueue(NewJob(endpoint=worker.endpoint, input=b"{}"))
    (job,) = await store.receive(worker.endpoint, worker.key, lease_s=LEASE_S)
    return job


async def status(store: MemoryJobStore, job: Job) -> JobStatus:
    now = await store.get(job.id)
    assert now is not None
    return now.status


async def has(store: MemoryJobStore, job: Job, wanted: JobStatus) -> bool:
    return await status(store, job) is wanted


def break_off(worker: RemoteWorker, kind: Any = "stop") -> None:
    with pytest.raises(ConnectionError), worker.poll(kind):
        raise ConnectionError


async def test_worker_is_lost_when_its_poll_stays_broken(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    break_off(worker)
    await asyncio.sleep(GRACE_S / 2)
    # From a process that outlives it.
    worker_registry.record_ping("ep", "w")
    assert await status(store, job) is JobStatus.IN_PROGRESS
    await asyncio.sleep(GRACE_S)
    assert await status(store, job) is JobStatus.IN_QUEUE
    assert worker_registry.workers("ep") == []


async def test_poll_that_is_taken_up_again_in_time_is_no_loss(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    break_off(worker)
    with worker.poll("take"):
        await asyncio.sleep(2 * LEASE_S)
    await asyncio.sleep(2 * GRACE_S)
    assert await status(store, job) is JobStatus.IN_PROGRESS


async def test_poll_that_ends_well_is_no_loss_though_another_broke(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    with worker.poll("stop"):
        break_off(worker, "take")
        await asyncio.sleep(2 * GRACE_S)
        assert await status(store, job) is JobStatus.IN_PROGRESS
    # The SDK pauses before it asks again.
    await asyncio.sleep(GRACE_S / 2)
    assert await status(store, job) is JobStatus.IN_PROGRESS


async def test_silent_worker_is_lost_after_the_lease(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    for _ in range(10):
        await asyncio.sleep(LEASE_S / 5)
        worker_registry.record_ping("ep", "w")
    assert await status(store, job) is JobStatus.IN_PROGRESS
    await asyncio.sleep(LEASE_S + 0.3)
    assert await status(store, job) is JobStatus.IN_QUEUE


async def test_ping_speaks_for_jobs_from_before_a_restart(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    worker_registry.record_ping("ep", "nobody")
    assert worker_registry.workers("ep") == []
    job = await lease(store, RemoteWorker("ep", "w"))
    for _ in range(10):
        await asyncio.sleep(LEASE_S / 5)
        worker_registry.record_ping("ep", "w")
    assert await status(store, job) is JobStatus.IN_PROGRESS


async def test_what_a_worker_says_it_has_not_waits_again(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    lost, done = await lease(store, worker), await lease(store, worker)
    with worker.poll("stop"):
        worker.report_no_jobs(worker_registry.leased_jobs(worker))
        await store.ack(done.id, done.attempt, output=b"1")
        kept = await lease(store, worker)
        await asyncio.sleep(0.3)
    assert await status(store, lost) is JobStatus.IN_QUEUE
    assert await status(store, done) is JobStatus.COMPLETED
    assert await status(store, kept) is JobStatus.IN_PROGRESS
    assert worker.missing_attempts == {}


async def test_what_the_pings_of_a_busy_worker_do_not_name_waits_again(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    kept, lost = await lease(store, worker), await lease(store, worker)
    with worker.poll("stop"):
        worker_registry.record_ping("ep", "w", kept.id)
        with worker.poll("take"):
            late = await lease(store, worker)
            worker_registry.record_ping("ep", "w", kept.id)
            await poll_until(lambda: has(store, lost, JobStatus.IN_QUEUE))
        # It was not there yet at the first of them.
        assert await status(store, late) is JobStatus.IN_PROGRESS
        assert await status(store, kept) is JobStatus.IN_PROGRESS


@pytest.mark.parametrize("second", ["", "kept,lost", "lost"])
async def test_one_ping_that_does_not_name_a_job_is_no_loss(
    store: MemoryJobStore, worker_registry: WorkerRegistry, second: str
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    kept, lost = await lease(store, worker), await lease(store, worker)
    worker_registry.record_ping("ep", "w", kept.id)
    with worker.poll("take"):
        worker_registry.record_ping(
            "ep", "w", second.replace("kept", kept.id).replace("lost", lost.id)
        )
        assert (lost.id, lost.attempt) not in worker.missing_attempts


async def test_pings_of_a_worker_that_cannot_read_its_answer_are_no_loss(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    with worker.poll("take"):
        kept, unread = await lease(store, worker), await lease(store, worker)
    with worker.poll("stop"):
        for _ in range(3):
            worker_registry.record_ping("ep", "w", kept.id)
        assert worker.missing_attempts == {}
        with worker.poll("take"):
            worker_registry.record_ping("ep", "w", f"{kept.id},{unread.id}")
            assert worker.missing_attempts == {}


async def test_job_that_is_handed_out_anew_is_not_taken_back_for_what_was_said_before(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    worker.report_no_jobs(worker_registry.leased_jobs(worker))
    await store.nack(job.id, job.attempt)
    (again,) = await store.receive("ep", worker.key, lease_s=LEASE_S)
    with worker.poll("stop"):
        await asyncio.sleep(0.3)
    assert again.id == job.id
    assert await status(store, job) is JobStatus.IN_PROGRESS


async def test_two_workers_of_a_name_are_told_of_once_and_not_believed(
    store: MemoryJobStore, worker_registry: WorkerRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    with worker.poll("stop"):
        with worker.poll("stop"):
            worker.report_no_jobs(worker_registry.leased_jobs(worker))
            await asyncio.sleep(0.3)
            assert await status(store, job) is JobStatus.IN_PROGRESS
        told = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert len(told) == 1
        assert "two workers of endpoint ep call themselves w" in told[0].getMessage()
        worker.report_no_jobs(worker_registry.leased_jobs(worker))
        await asyncio.sleep(0.3)
        assert await status(store, job) is JobStatus.IN_QUEUE


async def test_idle_worker_is_forgotten(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    with worker.poll("take"):
        await asyncio.sleep(0.4)
        assert worker_registry.count_workers("ep")["idle"] == 1
    await asyncio.sleep(0.4)
    assert worker_registry.workers("ep") == []


async def test_there_are_only_so_many_workers(
    store: MemoryJobStore, worker_registry: WorkerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator.runpod.worker_registry, "MAX_WORKERS", 1)
    worker_registry.get_or_register("ep", "w1")
    await lease(store, RemoteWorker("ep", "w2"))
    with pytest.raises(HTTPException, match="the most there may be"):
        worker_registry.get_or_register("ep", "w3")
    # It was there before the server was started, and brings a result.
    assert worker_registry.get_or_register("ep", "w2").name == "w2"


async def test_store_that_fails_is_asked_again(
    store: MemoryJobStore, worker_registry: WorkerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose = store.reclaim_jobs
    errors: list[Exception] = [StoreUnavailable("the disk is full"), RuntimeError("a bug")]

    async def failing(worker_id: str, reason: str) -> int:
        if errors:
            raise errors.pop()
        return await lose(worker_id, reason)

    monkeypatch.setattr(store, "reclaim_jobs", failing)
    worker, other = (
        worker_registry.get_or_register("ep", "w"),
        worker_registry.get_or_register("ep", "other"),
    )
    job = await lease(store, worker)
    break_off(worker)
    with other.poll("take"):
        await asyncio.sleep(GRACE_S + 0.15)
        assert await status(store, job) is JobStatus.IN_QUEUE
        assert worker_registry.workers("ep") == [other]


# -- handing out ----------------------------------------------------------------------------------


async def test_woken_worker_that_does_not_come_back_holds_nobody_up(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    # As the local worker waits, who looks for nothing unless he is woken.
    handout = JobDispatcher(store, hold_s=5, lease_s=LEASE_S)
    gone = asyncio.create_task(handout.lease_jobs(worker_registry.get_or_register("ep", "gone"), 1))
    await asyncio.sleep(0.15)
    other = asyncio.create_task(store.wait_for_job("ep"))
    await asyncio.sleep(0.01)
    job = await store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    async with asyncio.timeout(1):
        assert await gone == []
        await other
    assert await status(store, job) is JobStatus.IN_QUEUE
    now = await store.get(job.id)
    assert now is not None
    # Nobody has had it in between.
    assert (now.lost_attempts, now.attempt) == (0, 0)


async def test_young_call_gets_what_turns_up(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    handout = JobDispatcher(store, hold_s=5, lease_s=LEASE_S)
    taking = asyncio.create_task(handout.lease_jobs(worker_registry.get_or_register("ep", "w"), 1))
    await asyncio.sleep(0)
    job = await store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    assert [each.id for each in await taking] == [job.id]


async def test_worker_is_waited_for_until_it_listens(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    handout = JobDispatcher(store, hold_s=5, lease_s=LEASE_S)
    worker = worker_registry.get_or_register("ep", "w")
    await store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    with worker.poll("stop"):
        pass
    taking = asyncio.create_task(handout.lease_jobs(worker, 1))
    await asyncio.sleep(0.05)
    assert not taking.done()
    with worker.poll("stop"):
        assert len(await taking) == 1


async def test_stop_of_an_earlier_attempt_is_not_told(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    handout = JobDispatcher(store, hold_s=5, lease_s=LEASE_S)
    worker = worker_registry.get_or_register("ep", "w")
    job = await store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    for job_id in ("other", job.id):
        store.request_stop(worker.key, job_id)
    assert len(await handout.lease_jobs(worker, 1)) == 1
    assert await store.receive_stops(worker.key, 0) == ["other"]


async def test_a_server_without_workers_does_not_look_for_them(
    store: MemoryJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator.runpod.worker_registry, "_CHECK_INTERVAL_S", 0.0)
    turns = 0

    class Counted(dict[str, RemoteWorker]):
        def __bool__(self) -> bool:
            nonlocal turns
            turns += 1
            return len(self) > 0

    worker_registry = WorkerRegistry(store, lease_s=LEASE_S, grace_s=GRACE_S)
    monkeypatch.setattr(worker_registry, "_workers", Counted())
    worker_registry.start()
    for _ in range(100):
        await asyncio.sleep(0)
    assert turns == 1
    worker = worker_registry.get_or_register("e", "w")
    break_off(worker)
    worker.last_active_at -= 60
    await wait_until(lambda: not worker_registry.workers("e"))
    await worker_registry.close()
