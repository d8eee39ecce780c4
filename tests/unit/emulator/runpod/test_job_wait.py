"""A client's wait for a job ends sensibly when the server shuts down."""

from __future__ import annotations

import asyncio

import pytest

from emulator.http.shutdown_state import ShutdownState
from emulator.runpod.job_wait import wait_for_end
from jobs import JobStatus, MemoryJobStore, NewJob
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks


@pytest.fixture
def shutdown() -> ShutdownState:
    return ShutdownState()


async def test_wait_for_a_queued_job_returns_immediately(shutdown: ShutdownState) -> None:
    store = MemoryJobStore()
    job = await store.enqueue(NewJob(endpoint="a", input=b"1"))
    waiting = asyncio.create_task(wait_for_end(store, shutdown, job.id, 60))
    await run_ready_tasks()
    shutdown.start_draining()
    current = await waiting
    assert current is not None
    assert current.status is JobStatus.IN_QUEUE


@pytest.mark.parametrize("ends", [True, False])
async def test_wait_for_a_running_job_continues(shutdown: ShutdownState, ends: bool) -> None:
    store = MemoryJobStore()
    job = await store.enqueue(NewJob(endpoint="a", input=b"1"))
    (leased,) = await store.receive("a", "a/1", lease_s=60)
    waiting = asyncio.create_task(wait_for_end(store, shutdown, job.id, 60))
    await run_ready_tasks()
    shutdown.start_draining()
    await run_ready_tasks()
    assert not waiting.done()
    if ends:
        await store.ack(job.id, leased.attempt, output=b"1")
    else:
        shutdown.pass_deadline()
    current = await waiting
    assert current is not None
    assert current.status is (JobStatus.COMPLETED if ends else JobStatus.IN_PROGRESS)


async def test_waits_end_normally_without_a_shutdown(
    shutdown: ShutdownState, clock: VirtualClock
) -> None:
    store = MemoryJobStore()
    job = await store.enqueue(NewJob(endpoint="a", input=b"1"))
    current = await wait_for_end(store, shutdown, job.id, 60)
    assert clock.elapsed_s == pytest.approx(60)
    assert current is not None
    assert current.status is JobStatus.IN_QUEUE
    assert await wait_for_end(store, shutdown, "nothing", 1) is None
