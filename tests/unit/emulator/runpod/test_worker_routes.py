"""Long-polls of a worker that break off at any turn of the event loop, and its posts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from emulator.http.disconnect import ClientDisconnected
from emulator.http.shutdown_state import ShutdownState
from emulator.runpod.result_watch import ResultWatch
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.runpod.worker_routes import WorkerRoutes
from emulator.settings.emulator_settings import EmulatorSettings
from jobs import JobStatus, MemoryJobStore, NewJob
from tests.unit.emulator.events import DEADLINE_S
from tests.waiting import run_ready_tasks

Connect = Callable[..., Any]

# Without a virtual clock, a poll on a busy machine may last so long that it gets no job.
pytestmark = pytest.mark.usefixtures("clock")


class WorkerRoutesScene:
    """The routes on a store in memory, called without a server."""

    def __init__(self) -> None:
        settings = EmulatorSettings(job_db=":memory:", poll_hold_s=5)
        self.store = MemoryJobStore()
        self.worker_registry = WorkerRegistry(self.store, lease_s=30, grace_s=1)
        self.shutdown = ShutdownState()
        self.watch = ResultWatch(self.store)
        self.routes = WorkerRoutes(
            self.store, self.worker_registry, settings, self.shutdown, self.watch
        )
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
async def test_job_is_delivered_or_requeued_when_the_poll_breaks_at_any_turn(
    connection: Connect, turns: int
) -> None:
    scene, peer = WorkerRoutesScene(), connection()
    with scene.worker.poll("stop"):
        taking = asyncio.create_task(scene.routes._take(scene.request(peer)))
        await run_ready_tasks()
        job = await scene.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
        await run_ready_tasks(turns)
        peer.left.set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({taking})
    now = await scene.store.get(job.id)
    assert now is not None
    if taking.exception() is None:
        assert now.status is JobStatus.IN_PROGRESS
        assert not scene.worker.has_broken_poll
    else:
        assert isinstance(taking.exception(), ClientDisconnected)
        assert scene.worker.has_broken_poll
        assert (now.status, now.lost_attempts) == (JobStatus.IN_QUEUE, 0)
    assert scene.worker.open_take_polls == 0


@pytest.mark.parametrize("turns", range(12))
async def test_stop_is_delivered_when_the_poll_breaks_at_any_turn(
    connection: Connect, turns: int
) -> None:
    scene, peer = WorkerRoutesScene(), connection()
    job = await scene.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    await scene.store.receive("ep", scene.worker.key, lease_s=30)
    stopping = asyncio.create_task(scene.routes._stop(scene.request(peer)))
    await run_ready_tasks()
    await scene.store.cancel(job.id)
    await run_ready_tasks(turns)
    peer.left.set()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait({stopping})
    if stopping.exception() is None:
        assert job.id.encode() in stopping.result().body
    else:
        # The next call returns the job, even if the registry has forgotten the worker.
        scene.worker_registry.forget_worker("ep", "w")
        response = await scene.routes._stop(scene.request(connection()))
        assert job.id.encode() in response.body


async def test_disconnected_worker_gets_no_job(connection: Connect) -> None:
    scene, peer = WorkerRoutesScene(), connection()
    job = await scene.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    peer.left.set()
    with scene.worker.poll("stop"), pytest.raises(ClientDisconnected):
        await scene.routes._take(scene.request(peer))
    now = await scene.store.get(job.id)
    assert now is not None
    assert (now.status, now.lost_attempts) == (JobStatus.IN_QUEUE, 0)


async def test_undelivered_stop_is_returned_by_the_next_call(connection: Connect) -> None:
    scene, peer = WorkerRoutesScene(), connection()
    job = await scene.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    await scene.store.receive("ep", scene.worker.key, lease_s=30)
    await scene.store.cancel(job.id)
    peer.left.set()
    with pytest.raises(ClientDisconnected):
        await scene.routes._stop(scene.request(peer))
    response = await scene.routes._stop(scene.request(connection()))
    assert response.body == b'{"jobsToStop":["%b"]}' % job.id.encode()


async def test_shutdown_ends_the_polls_immediately(connection: Connect) -> None:
    scene = WorkerRoutesScene()
    await scene.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    await scene.store.receive("ep", scene.worker.key, lease_s=30)
    taking, stopping = [
        asyncio.create_task(poll(scene.request(connection())))
        for poll in (scene.routes._take, scene.routes._stop)
    ]
    await run_ready_tasks()
    scene.shutdown.start_draining()
    async with asyncio.timeout(30):
        assert (await taking).status_code == 204
    # Its running job may still be cancelled.
    await run_ready_tasks()
    assert not stopping.done()
    scene.shutdown.pass_deadline()
    async with asyncio.timeout(30):
        assert (await stopping).status_code == 204


async def test_busy_worker_does_not_get_a_new_attempt_of_its_job(connection: Connect) -> None:
    """The SDK's posts do not name the attempt, so the chunks of both would be one stream."""
    scene = WorkerRoutesScene()
    job = await scene.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    await scene.store.receive("ep", scene.worker.key, lease_s=30)
    await scene.store.reclaim_jobs(scene.worker.key, "its connection broke off")
    with scene.worker.poll("stop"):
        busy = scene.request(connection(), "job_in_progress=1")
        async with asyncio.timeout(DEADLINE_S):
            assert (await scene.routes._take(busy)).status_code == 204
            free = scene.request(connection(), "job_in_progress=0")
            assert job.id.encode() in (await scene.routes._take(free)).body


async def test_output_of_a_worker_is_read_before_its_result_ends_the_job() -> None:
    scene = WorkerRoutesScene()
    job = await scene.store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    await scene.store.receive("ep", scene.worker.key, lease_s=30)
    reads: list[tuple[str, str, JobStatus]] = []

    async def catch_up(endpoint: str, worker: str) -> None:
        now = await scene.store.get(job.id)
        assert now is not None
        reads.append((endpoint, worker, now.status))

    scene.watch.catch_up = catch_up
    scope = {
        "type": "http",
        "method": "POST",
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
        "path_params": {"endpoint": "ep", "worker": "w", "job_id": job.id},
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"output": 1}'}

    await scene.routes._done(Request(scope, receive))
    now = await scene.store.get(job.id)
    assert now is not None
    assert (now.status, reads) == (JobStatus.COMPLETED, [("ep", "w", JobStatus.IN_PROGRESS)])
