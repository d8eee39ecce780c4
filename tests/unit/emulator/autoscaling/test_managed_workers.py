"""The workers of one autoscaler, with their jobs."""

from __future__ import annotations

from typing import Any

from emulator.autoscaling.managed_workers import ManagedWorkers
from emulator.runpod.job_response import worker_key
from emulator.runpod.worker_registry import WorkerRegistry
from jobs import JobStatus, MemoryJobStore, NewJob
from tests.unit.emulator.autoscaling.scene import ENDPOINT, build_worker


class WorkersScene:
    """Two workers, and the store and registry that they are in."""

    def __init__(self) -> None:
        self.store = MemoryJobStore()
        self.registry = WorkerRegistry(self.store, lease_s=30, grace_s=2)
        self.workers = ManagedWorkers(self.store, self.registry, ENDPOINT)
        self.first, self.second = build_worker("w1"), build_worker("w2")
        self.workers.add(self.first)
        self.workers.add(self.second)

    async def give_jobs(self, name: str, count: int) -> list[str]:
        for _ in range(count):
            await self.store.enqueue(NewJob(endpoint=ENDPOINT, input=b"{}"))
        key = worker_key(ENDPOINT, name)
        jobs = await self.store.receive(ENDPOINT, key, lease_s=1e9, limit=count)
        return [job.id for job in jobs]


def test_terminated_worker_is_paused_and_ends_within_its_time() -> None:
    scene = WorkersScene()
    registration = scene.registry.get_or_register(ENDPOINT, "w1")
    scene.workers.terminate(scene.first, 10.0, 3.0)
    process: Any = scene.first.process
    assert (process.terminated, process.killed, registration.is_paused) == (1, 0, True)
    assert (scene.first.ending_at, scene.first.exit_timeout_s) == (10.0, 3.0)
    assert (scene.workers.active, scene.workers.ending) == ([scene.second], [scene.first])


def test_worker_has_joined_as_soon_as_it_is_registered() -> None:
    scene = WorkersScene()
    assert not scene.workers.has_joined(scene.first)
    scene.registry.get_or_register(ENDPOINT, "w1")
    assert scene.workers.has_joined(scene.first)


async def test_only_job_returns_the_single_job_of_a_worker() -> None:
    scene = WorkersScene()
    (job,) = await scene.give_jobs("w1", 1)
    await scene.give_jobs("w2", 2)
    assert scene.workers.find_only_job("w1") == job
    assert scene.workers.find_only_job("w2") is None
    assert scene.workers.has_jobs(scene.second)
    assert not scene.workers.has_jobs(build_worker("w3"))


async def test_requeued_jobs_lose_no_attempt() -> None:
    scene = WorkersScene()
    (job_id,) = await scene.give_jobs("w1", 1)
    await scene.workers.requeue_jobs(scene.first)
    job = await scene.store.get(job_id)
    assert job is not None
    assert job.status is JobStatus.IN_QUEUE
    assert not scene.workers.has_jobs(scene.first)


def test_kill_ends_the_chosen_workers_that_run() -> None:
    scene = WorkersScene()
    first: Any = scene.first.process
    second: Any = scene.second.process
    second.end(0)
    scene.workers.kill(lambda worker: True)
    assert (first.killed, second.killed) == (1, 0)


def test_workers_can_be_removed_while_they_are_iterated() -> None:
    scene = WorkersScene()
    for worker in scene.workers:
        scene.workers.remove(worker)
    assert len(scene.workers) == 0
