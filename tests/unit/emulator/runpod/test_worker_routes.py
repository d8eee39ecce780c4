"""A worker's long-poll that breaks off at the worst of moments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request

from emulator.http.disconnect import ClientDisconnected
from emulator.http.shutdown_state import ShutdownState
from emulator.runpod.draining_store import DrainingStore
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.runpod.worker_routes import WorkerRoutes
from emulator.settings import EmulatorSettings
from jobs import JobStatus, MemoryJobStore, NewJob
from tests.unit.emulator.events import DEADLINE_S

Connect = Callable[..., Any]


class Plane:
    """The routes on a store in memory, called without a server."""

    def __init__(self) -> None:
        settings = EmulatorSettings(job_db=":memory:", poll_hold_s=5)
        self.store = MemoryJobStore()
        self.worker_registry = WorkerRegistry(self.store, lease_s=30, grace_s=1)
        self.shutdown = ShutdownState()
        seen = DrainingStore(self.store, self.shutdown)
        self.routes = WorkerRoutes(seen, self.worker_registry, settings, self.shutdown)
        self.worker = self.worker_registry.get_or_register("ep", "w")

    def request(self, peer: Any, query: str = "") -> Request:
        scope = {
            "type": "http",
            "method": "GET",
            "headers": [],
            "query_string": query.encode(),
            "path_params": {"endpoint": "ep", "worker": "w"},
        }
        return Request(scope, peer.receive)


@pytest.mark.parametrize("turns", range(12))
async def test_job_is_answered_or_waits_again_whenever_the_poll_breaks(
    connection: Connect, turns: int
) -> None:
    plane, peer = Plane(), connection()
    with plane.worker.poll("stop"):
        taking = asyncio.create_task(plane.routes._take(plane.request(peer)))
        await asyncio.sleep(0)
        job = await plane.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        peer.left.set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({taking})
    now = await plane.store.get(job.id)
    assert now is not None
    if taking.exception() is None:
        assert now.status is JobStatus.IN_PROGRESS
        assert not plane.worker.has_broken_poll
    else:
        assert isinstance(taking.exception(), ClientDisconnected)
        assert plane.worker.has_broken_poll
        assert (now.status, now.lost_attempts) == (JobStatus.IN_QUEUE, 0)
    assert plane.worker.open_take_polls == 0


@pytest.mark.parametrize("turns", range(12))
async def test_stop_is_told_whenever_the_poll_breaks(connection: Connect, turns: int) -> None:
    plane, peer = Plane(), connection()
    job = await plane.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    await plane.store.receive("ep", plane.worker.key, lease_s=30)
    stopping = asyncio.create_task(plane.routes._stop(plane.request(peer)))
    await asyncio.sleep(0.01)
    await plane.store.cancel(job.id)
    for _ in range(turns):
        await asyncio.sleep(0)
    peer.left.set()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait({stopping})
    if stopping.exception() is None:
        assert job.id.encode() in stopping.result().body
    else:
        # It is told by the next one, also where nothing else is known of the worker any more.
        plane.worker_registry.forget_worker("ep", "w")
        response = await plane.routes._stop(plane.request(connection()))
        assert job.id.encode() in response.body


async def test_worker_that_left_before_it_was_served_is_given_nothing(connection: Connect) -> None:
    plane, peer = Plane(), connection()
    job = await plane.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    peer.left.set()
    with plane.worker.poll("stop"), pytest.raises(ClientDisconnected):
        await plane.routes._take(plane.request(peer))
    now = await plane.store.get(job.id)
    assert now is not None
    assert (now.status, now.lost_attempts) == (JobStatus.IN_QUEUE, 0)


async def test_stop_that_found_nobody_is_told_by_the_next_call(connection: Connect) -> None:
    plane, peer = Plane(), connection()
    job = await plane.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    await plane.store.receive("ep", plane.worker.key, lease_s=30)
    await plane.store.cancel(job.id)
    peer.left.set()
    with pytest.raises(ClientDisconnected):
        await plane.routes._stop(plane.request(peer))
    response = await plane.routes._stop(plane.request(connection()))
    assert response.body == b'{"jobsToStop":["%b"]}' % job.id.encode()


async def test_end_of_the_server_ends_the_polls_at_once(connection: Connect) -> None:
    plane = Plane()
    await plane.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    await plane.store.receive("ep", plane.worker.key, lease_s=30)
    taking, stopping = [
        asyncio.create_task(poll(plane.request(connection())))
        for poll in (plane.routes._take, plane.routes._stop)
    ]
    await asyncio.sleep(0.01)
    plane.shutdown.start_draining()
    async with asyncio.timeout(0.1):
        assert (await taking).status_code == 204
    # What it runs may still be cancelled.
    await asyncio.sleep(0.01)
    assert not stopping.done()
    plane.shutdown.pass_deadline()
    async with asyncio.timeout(0.1):
        assert (await stopping).status_code == 204


async def test_worker_that_is_busy_gets_no_second_run_of_what_it_runs(connection: Connect) -> None:
    """Its chunks of both would be one stream: what the SDK posts says nothing of the run."""
    plane = Plane()
    job = await plane.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    await plane.store.receive("ep", plane.worker.key, lease_s=30)
    await plane.store.reclaim_jobs(plane.worker.key, "its connection broke off")
    with plane.worker.poll("stop"):
        busy = plane.request(connection(), "job_in_progress=1")
        async with asyncio.timeout(DEADLINE_S):
            assert (await plane.routes._take(busy)).status_code == 204
            free = plane.request(connection(), "job_in_progress=0")
            assert job.id.encode() in (await plane.routes._take(free)).body
