"""How lost workers and lost jobs are detected, and how their jobs are queued again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.exceptions import HTTPException

import emulator.runpod.worker_registry
from emulator.http.shutdown_state import ShutdownState
from emulator.runpod.dispatcher import JobDispatcher
from emulator.runpod.remote_worker import RemoteWorker
from emulator.runpod.worker_registry import WorkerRegistry
from jobs import Job, JobStatus, MemoryJobStore, NewJob, StoreUnavailable
from jobs.memory.expiry import MAX_START_DELAY_S
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks

GRACE_S = 3.0
LEASE_S = 30.0
# Longer than the registry waits before it acts on a report of a missing job.
MISSING_S = 2.0


@pytest.fixture
async def store(clock: VirtualClock) -> AsyncIterator[MemoryJobStore]:
    job_store = MemoryJobStore(now=clock.system, monotonic=clock.monotonic)
    await job_store.start()
    yield job_store
    await job_store.close()


@pytest.fixture
async def worker_registry(store: MemoryJobStore) -> AsyncIterator[WorkerRegistry]:
    registry = WorkerRegistry(store, lease_s=LEASE_S, grace_s=GRACE_S)
    registry.start()
    yield registry
    await registry.close()


async def lease(store: MemoryJobStore, worker: RemoteWorker) -> Job:
    await store.enqueue(NewJob(endpoint=worker.endpoint, input=b"{}"))
    (job,) = await store.receive(worker.endpoint, worker.key, lease_s=LEASE_S)
    return job


async def status(store: MemoryJobStore, job: Job) -> JobStatus:
    now = await store.get(job.id)
    assert now is not None
    return now.status


def break_poll(worker: RemoteWorker, kind: Any = "stop") -> None:
    with pytest.raises(ConnectionError), worker.poll(kind):
        raise ConnectionError


async def test_worker_is_lost_when_its_poll_stays_broken(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    break_poll(worker)
    await clock.advance(GRACE_S / 2)
    # The ping comes from a process that outlives the worker.
    worker_registry.record_ping("ep", "w")
    assert await status(store, job) is JobStatus.IN_PROGRESS
    await clock.advance(GRACE_S)
    assert await status(store, job) is JobStatus.IN_QUEUE
    assert worker_registry.workers("ep") == []


async def test_worker_is_kept_when_it_polls_within_the_grace_time(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    break_poll(worker)
    with worker.poll("take"):
        await clock.advance(2 * LEASE_S)
    await clock.advance(2 * GRACE_S)
    assert await status(store, job) is JobStatus.IN_PROGRESS


async def test_worker_is_kept_when_a_later_poll_succeeds(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    with worker.poll("stop"):
        break_poll(worker, "take")
        await clock.advance(2 * GRACE_S)
        assert await status(store, job) is JobStatus.IN_PROGRESS
    # The SDK pauses before it asks again.
    await clock.advance(GRACE_S / 2)
    assert await status(store, job) is JobStatus.IN_PROGRESS


async def test_silent_worker_is_lost_after_the_lease(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    for _ in range(10):
        await clock.advance(LEASE_S / 5)
        worker_registry.record_ping("ep", "w")
    assert await status(store, job) is JobStatus.IN_PROGRESS
    await clock.advance(LEASE_S + 1)
    assert await status(store, job) is JobStatus.IN_QUEUE


async def test_ping_extends_leases_from_before_a_restart(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    worker_registry.record_ping("ep", "nobody")
    assert worker_registry.workers("ep") == []
    job = await lease(store, RemoteWorker("ep", "w"))
    for _ in range(10):
        await clock.advance(LEASE_S / 5)
        worker_registry.record_ping("ep", "w")
    assert await status(store, job) is JobStatus.IN_PROGRESS


async def test_job_has_failed_when_its_worker_reports_no_jobs(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    lost, done = await lease(store, worker), await lease(store, worker)
    with worker.poll("stop"):
        worker.report_no_jobs(worker_registry.leased_jobs(worker))
        await store.ack(done.id, done.attempt, output=b"1")
        kept = await lease(store, worker)
        await clock.advance(MISSING_S)
    ended = await store.get(lost.id)
    assert ended is not None
    assert (ended.status, ended.attempt) == (JobStatus.FAILED, 1)
    assert ended.error == "the job failed: its worker has stopped running it and sent no result"
    assert await status(store, done) is JobStatus.COMPLETED
    assert await status(store, kept) is JobStatus.IN_PROGRESS
    assert worker.missing_attempts == {}


@pytest.mark.parametrize("restart", ["of the worker", "of the server"])
async def test_job_is_requeued_when_its_worker_may_have_been_restarted(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock, restart: str
) -> None:
    # R81: the loss of a worker or a server is no fault of the job.
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    await clock.advance(1)
    if restart == "of the worker":
        break_poll(worker)
    else:
        worker_registry.forget_worker("ep", "w")
        worker = worker_registry.get_or_register("ep", "w")
    with worker.poll("stop"):
        worker.report_no_jobs(worker_registry.leased_jobs(worker))
        await clock.advance(MISSING_S)
        assert await status(store, job) is JobStatus.IN_QUEUE


async def test_job_has_failed_when_pings_do_not_list_it(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    kept, lost = await lease(store, worker), await lease(store, worker)
    with worker.poll("stop"):
        worker_registry.record_ping("ep", "w", kept.id)
        await clock.advance(1)
        with worker.poll("take"):
            late = await lease(store, worker)
            worker_registry.record_ping("ep", "w", kept.id)
            await clock.advance(MISSING_S)
            assert await status(store, lost) is JobStatus.FAILED
        # The late job was not leased yet at the first report.
        assert await status(store, late) is JobStatus.IN_PROGRESS
        assert await status(store, kept) is JobStatus.IN_PROGRESS


@pytest.mark.parametrize("second", ["", "kept,lost", "lost"])
async def test_one_ping_without_a_job_does_not_requeue_it(
    store: MemoryJobStore, worker_registry: WorkerRegistry, second: str, clock: VirtualClock
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    kept, lost = await lease(store, worker), await lease(store, worker)
    worker_registry.record_ping("ep", "w", kept.id)
    await clock.advance(1)
    with worker.poll("take"):
        worker_registry.record_ping(
            "ep", "w", second.replace("kept", kept.id).replace("lost", lost.id)
        )
        assert (lost.id, lost.attempt) not in worker.missing_attempts


async def test_pings_before_the_next_take_do_not_requeue_a_job(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    with worker.poll("take"):
        kept, unread = await lease(store, worker), await lease(store, worker)
    with worker.poll("stop"):
        for _ in range(3):
            await clock.advance(1)
            worker_registry.record_ping("ep", "w", kept.id)
        assert worker.missing_attempts == {}
        with worker.poll("take"):
            worker_registry.record_ping("ep", "w", f"{kept.id},{unread.id}")
            assert worker.missing_attempts == {}


async def test_earlier_report_does_not_requeue_a_new_attempt(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    worker.report_no_jobs(worker_registry.leased_jobs(worker))
    await store.nack(job.id, job.attempt)
    (retried,) = await store.receive("ep", worker.key, lease_s=LEASE_S)
    with worker.poll("stop"):
        await clock.advance(MISSING_S)
    assert retried.id == job.id
    assert await status(store, job) is JobStatus.IN_PROGRESS


async def test_parallel_polls_of_a_launched_worker_are_no_duplicate_name(
    worker_registry: WorkerRegistry, caplog: pytest.LogCaptureFixture, clock: VirtualClock
) -> None:
    worker = worker_registry.get_or_register("ep", "launched-a-1")
    with worker.poll("take"), worker.poll("take"):
        await clock.advance(1)
    assert not worker.has_duplicate_name
    assert "call themselves" not in caplog.text


async def test_duplicate_name_logs_one_error_and_its_reports_are_ignored(
    store: MemoryJobStore,
    worker_registry: WorkerRegistry,
    caplog: pytest.LogCaptureFixture,
    clock: VirtualClock,
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    job = await lease(store, worker)
    with worker.poll("stop"):
        with worker.poll("stop"):
            worker.report_no_jobs(worker_registry.leased_jobs(worker))
            await clock.advance(MISSING_S)
            assert await status(store, job) is JobStatus.IN_PROGRESS
        # The other worker ends.
        break_poll(worker)
        errors = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "two workers of endpoint ep call themselves w" in errors[0].getMessage()
        worker.report_no_jobs(worker_registry.leased_jobs(worker))
        await clock.advance(MISSING_S)
        assert await status(store, job) is JobStatus.IN_QUEUE


async def test_idle_worker_is_removed(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    worker = worker_registry.get_or_register("ep", "w")
    with worker.poll("take"):
        await clock.advance(11)
        assert worker_registry.count_workers("ep")["idle"] == 1
    await clock.advance(11)
    assert worker_registry.workers("ep") == []
    assert worker_registry.count_workers("ep")["idle"] == 0


async def test_number_of_workers_is_limited(
    store: MemoryJobStore, worker_registry: WorkerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator.runpod.worker_registry, "MAX_WORKERS", 1)
    worker_registry.get_or_register("ep", "w1")
    await lease(store, RemoteWorker("ep", "w2"))
    with pytest.raises(HTTPException, match="the most there may be"):
        worker_registry.get_or_register("ep", "w3")
    # Worker w2 leased its job before the server's restart, and brings a result.
    assert worker_registry.get_or_register("ep", "w2").name == "w2"


async def test_store_failure_is_retried(
    store: MemoryJobStore,
    worker_registry: WorkerRegistry,
    monkeypatch: pytest.MonkeyPatch,
    clock: VirtualClock,
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
    break_poll(worker)
    with other.poll("take"):
        await clock.advance(GRACE_S + 1)
        assert await status(store, job) is JobStatus.IN_QUEUE
        assert worker_registry.workers("ep") == [other]


# -- handing out ----------------------------------------------------------------------------------


async def test_job_goes_to_another_worker_when_the_woken_one_stops_polling(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    # Like the local worker, this poll does not check the queue until it is woken.
    handout = JobDispatcher(store, ShutdownState(), hold_s=5, lease_s=LEASE_S)
    abandoned_poll = asyncio.create_task(
        handout.lease_jobs(worker_registry.get_or_register("ep", "gone"), 1)
    )
    await clock.advance(0.15)
    other = asyncio.create_task(store.wait_for_job("ep"))
    await run_ready_tasks()
    job = await store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    async with asyncio.timeout(1):
        assert await abandoned_poll == []
        await other
    assert await status(store, job) is JobStatus.IN_QUEUE
    now = await store.get(job.id)
    assert now is not None
    # No worker has leased the job in between.
    assert (now.lost_attempts, now.attempt) == (0, 0)


async def test_new_poll_gets_a_new_job_immediately(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    handout = JobDispatcher(store, ShutdownState(), hold_s=5, lease_s=LEASE_S)
    taking = asyncio.create_task(handout.lease_jobs(worker_registry.get_or_register("ep", "w"), 1))
    await run_ready_tasks()
    job = await store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    assert [each.id for each in await taking] == [job.id]


async def test_lease_waits_for_the_stop_poll_of_the_worker(
    store: MemoryJobStore, worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    handout = JobDispatcher(store, ShutdownState(), hold_s=5, lease_s=LEASE_S)
    worker = worker_registry.get_or_register("ep", "w")
    await store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    with worker.poll("stop"):
        pass
    taking = asyncio.create_task(handout.lease_jobs(worker, 1))
    await clock.advance(1)
    assert not taking.done()
    with worker.poll("stop"):
        assert len(await taking) == 1


async def test_stop_of_an_earlier_attempt_is_dropped(
    store: MemoryJobStore, worker_registry: WorkerRegistry
) -> None:
    handout = JobDispatcher(store, ShutdownState(), hold_s=5, lease_s=LEASE_S)
    worker = worker_registry.get_or_register("ep", "w")
    job = await store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    for job_id in ("other", job.id):
        store.request_stop(worker.key, job_id)
    assert len(await handout.lease_jobs(worker, 1)) == 1
    assert await store.receive_stops(worker.key, 0) == ["other"]


async def test_registry_without_workers_does_not_check(
    worker_registry: WorkerRegistry, clock: VirtualClock
) -> None:
    # The first check finds no worker.
    await clock.advance(1)
    before = clock.waits
    await clock.advance(30)
    assert clock.waits - before == 1
    break_poll(worker_registry.get_or_register("e", "w"))
    await clock.advance(GRACE_S + 1)
    assert worker_registry.workers("e") == []


@pytest.mark.parametrize(("name", "warnings"), [("pod-1", 1), ("launched-1", 0)])
async def test_worker_by_hand_that_holds_a_timed_out_job_logs_one_warning(
    worker_registry: WorkerRegistry,
    store: MemoryJobStore,
    caplog: pytest.LogCaptureFixture,
    clock: VirtualClock,
    name: str,
    warnings: int,
) -> None:
    worker = worker_registry.get_or_register("here", name)
    with worker.poll("stop"):
        job = await lease(store, worker)
        worker_registry.record_stop(job.replace(status=JobStatus.TIMED_OUT))
        other = worker_registry.get_or_register("here", "pod-2")
        other.record_stop(0.0, 3, "was cancelled")
        # The check of pod-2 comes after the check of this worker.
        await clock.advance(4)
        assert "worker pod-2 still runs a job that was cancelled" in caplog.text
        assert caplog.text.count(f"worker {name} still runs") == warnings


@pytest.mark.parametrize(
    ("final_status", "grace_s", "why"),
    [
        (JobStatus.TIMED_OUT, 3, "is past its executionTimeout"),
        (JobStatus.CANCELLED, 5, "was cancelled"),
        (JobStatus.IN_PROGRESS, 5, "is past its ttl"),
    ],
)
async def test_stop_of_a_job_leaves_its_worker_some_time(
    worker_registry: WorkerRegistry,
    store: MemoryJobStore,
    final_status: JobStatus,
    grace_s: float,
    why: str,
) -> None:
    worker = worker_registry.get_or_register("here", "pod-1")
    job = await lease(store, worker)
    worker_registry.record_stop(job.replace(status=final_status, worker_id=None))
    worker_registry.record_stop(job.replace(status=final_status, worker_id="here/gone"))
    assert worker.find_unstopped_job(float("inf")) is None
    worker_registry.record_stop(job.replace(status=final_status, started_at=time.time() - 60))
    now = time.monotonic()
    assert worker.find_unstopped_job(now + grace_s - 1) is None
    assert worker.find_unstopped_job(now + grace_s) == why
    # The worker may ignore the stop of a job that it has not begun, and gets a second one.
    worker_registry.record_stop(job.replace(status=final_status, started_at=time.time()))
    now = time.monotonic()
    assert worker.find_unstopped_job(now + MAX_START_DELAY_S + grace_s - 1) is None
    assert worker.find_unstopped_job(now + MAX_START_DELAY_S + grace_s) == why


def test_endpoint_without_workers_is_named_with_the_endpoints_that_have_some(
    worker_registry: WorkerRegistry,
) -> None:
    # Workers that the server does not start may connect at any time.
    assert worker_registry.explain_unserved("wrong") is None
    worker_registry.set_explain_wait("resize", lambda: None)
    worker_registry.set_explain_wait("caption", lambda: None)
    reason = "no worker asks for jobs of the endpoint wrong, but of caption, resize"
    assert worker_registry.explain_unserved("wrong") == reason
    assert worker_registry.explain_wait("wrong") == f"the job waits: {reason}"
    assert worker_registry.explain_unserved("resize") is None
    worker_registry.get_or_register("wrong", "pod-1")
    assert worker_registry.explain_unserved("wrong") is None


async def test_queued_job_reports_the_reason_for_its_wait(
    worker_registry: WorkerRegistry, store: MemoryJobStore
) -> None:
    explain = worker_registry.explain_wait
    assert explain("here") == "the job waits: no worker asks for jobs of the endpoint here"
    worker = worker_registry.get_or_register("here", "pod-1")
    assert explain("here") is None
    job = await lease(store, worker)
    assert explain("here") == "the job waits for a worker that runs other jobs"
    worker_registry.set_explain_wait("here", lambda: "the next worker starts in 4 s")
    assert explain("here") == "the job waits: the next worker starts in 4 s"
    assert await store.ack(job.id, job.attempt, output=b"1")
    assert explain("here") is None
    worker.pause()
    assert explain("here") == "the job waits: the next worker starts in 4 s"


async def test_job_is_explained_after_two_seconds_in_the_queue(
    worker_registry: WorkerRegistry, store: MemoryJobStore
) -> None:
    job = await store.enqueue(NewJob(endpoint="here", input=b"{}"))
    explain = worker_registry.explain_waiting_job
    assert explain(job) is None
    old = job.replace(queued_at=job.queued_at - 3)
    assert explain(old) == "the job waits: no worker asks for jobs of the endpoint here"
    assert explain(old.replace(status=JobStatus.CANCELLED)) is None


@pytest.mark.parametrize(
    ("slots", "text"),
    [
        ((1, 0, 0), None),
        ((0, 1, 0), "the job waits for a worker that runs other jobs"),
        ((0, 0, 0), "the job waits for the server's own model, which is being loaded"),
        ((0, 0, 1), "the job waits for the server's own model, which is out of order"),
    ],
)
def test_queued_job_reports_that_it_waits_for_the_servers_own_model(
    worker_registry: WorkerRegistry, slots: tuple[int, int, int], text: str | None
) -> None:
    worker_registry.set_local_slots("here", lambda: slots)
    assert worker_registry.explain_wait("here") == text
