"""No worker gets a job while the server drains, and no job is lost then."""

from __future__ import annotations

import asyncio

from emulator.http.shutdown_state import ShutdownState
from emulator.runpod.dispatcher import JobDispatcher
from emulator.runpod.remote_worker import RemoteWorker
from emulator.runpod.worker_registry import WorkerRegistry
from jobs import JobStatus, MemoryJobStore, NewJob
from tests.waiting import run_ready_tasks


def build(shutdown: ShutdownState) -> tuple[MemoryJobStore, JobDispatcher, RemoteWorker]:
    store = MemoryJobStore()
    worker = WorkerRegistry(store, lease_s=30, grace_s=1).get_or_register("ep", "w")
    return store, JobDispatcher(store, shutdown, hold_s=60, lease_s=9), worker


async def test_draining_ends_held_calls_and_gives_no_more_jobs() -> None:
    shutdown = ShutdownState()
    store, dispatcher, worker = build(shutdown)
    held = [asyncio.create_task(dispatcher.lease_jobs(worker, 1)) for _ in range(2)]
    await run_ready_tasks()
    shutdown.start_draining()
    async with asyncio.timeout(30):
        assert [await each for each in held] == [[], []]
    job = await store.enqueue(NewJob(endpoint="ep", input=b"1"))
    async with asyncio.timeout(30):
        assert await dispatcher.lease_jobs(worker, 1) == []
    stored = await store.get(job.id)
    assert stored is not None
    assert (stored.status, stored.attempt) == (JobStatus.IN_QUEUE, 0)


async def test_job_is_leased_or_stays_whenever_draining_starts() -> None:
    for turns in range(8):
        shutdown = ShutdownState()
        store, dispatcher, worker = build(shutdown)
        held = asyncio.create_task(dispatcher.lease_jobs(worker, 1))
        await run_ready_tasks()
        await store.enqueue(NewJob(endpoint="ep", input=b"1"))
        await run_ready_tasks(turns)
        shutdown.start_draining()
        async with asyncio.timeout(30):
            assert len(await held) == len(store.list_leased_jobs(worker.key))
