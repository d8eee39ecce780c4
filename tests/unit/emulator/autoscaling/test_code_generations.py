"""Versions of the code: which workers end, wait or continue when it changes."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.autoscaling.code_generations import CodeGenerations
from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.autoscaling.managed_workers import ManagedWorkers
from emulator.autoscaling.start_failure import StartFailure
from emulator.autoscaling.worker_exit import KILLED
from emulator.runpod.worker_registry import WorkerRegistry
from jobs import MemoryJobStore
from tests.unit.emulator.autoscaling.scene import ENDPOINT, build_worker

FAILURE = StartFailure(worker="w2", program="handler.py", reason="it broke", output="")


class ReloadScene:
    """One worker that has polled for a job, and a change of its code."""

    def __init__(self, *, ends_old_first: bool = False) -> None:
        store = MemoryJobStore()
        self.registry = WorkerRegistry(store, lease_s=30, grace_s=2)
        self.workers = ManagedWorkers(store, self.registry, ENDPOINT)
        self.generations = CodeGenerations(
            self.workers, requeues_on_reload=False, ends_old_first=ends_old_first
        )
        self.old = self.add("w1")
        self.join(self.old)
        self.generations.begin_next()

    def add(self, name: str) -> ManagedWorker:
        worker = build_worker(name, generation=self.generations.newest)
        self.workers.add(worker)
        return worker

    def join(self, worker: ManagedWorker) -> None:
        self.registry.get_or_register(ENDPOINT, worker.name)
        worker.joined = True
        self.generations.record_join(worker)

    async def replace(self) -> None:
        registered = {each.name: each for each in self.registry.workers(ENDPOINT)}
        await self.generations.replace_outdated(registered, 10.0)

    @property
    def is_old_paused(self) -> bool:
        return self.registry.get_or_register(ENDPOINT, "w1").is_paused


async def test_old_worker_is_paused_until_the_newest_code_has_started() -> None:
    scene = ReloadScene()
    new = scene.add("w2")
    await scene.replace()
    assert scene.is_old_paused
    assert scene.generations.outdated == [scene.old]
    assert not scene.generations.runs_newest
    scene.join(new)
    await scene.replace()
    assert scene.workers.ending == [scene.old]
    assert scene.generations.runs_newest


async def test_old_worker_goes_on_when_the_newest_code_has_failed() -> None:
    scene = ReloadScene()
    await scene.replace()
    scene.generations.failure = FAILURE
    await scene.replace()
    assert not scene.is_old_paused
    assert scene.workers.active == [scene.old]


async def test_old_worker_that_has_not_polled_is_killed() -> None:
    scene = ReloadScene()
    unstarted = scene.add("w2")
    scene.generations.begin_next()
    await scene.replace()
    process: Any = unstarted.process
    assert process.killed == 1
    assert scene.workers.ending == [unstarted]


@pytest.mark.parametrize("reason", ["setting", "failure"])
async def test_old_worker_ends_before_the_next_start(reason: str) -> None:
    scene = ReloadScene(ends_old_first=reason == "setting")
    scene.generations.starts_alone = reason == "failure"
    usual_s = ReloadScene().generations.exit_timeout_s
    await scene.replace()
    assert scene.workers.ending == [scene.old]
    assert scene.old.exit_timeout_s == scene.generations.exit_timeout_s < usual_s
    assert scene.generations.must_wait_for_end
    scene.workers.remove(scene.old)
    assert not scene.generations.must_wait_for_end


def test_one_failed_start_proves_new_code_broken() -> None:
    scene = ReloadScene()
    scene.generations.record_failed_start(scene.old, 1, 1, FAILURE)
    assert scene.generations.failure is None
    scene.generations.record_failed_start(scene.add("w2"), 1, 1, FAILURE)
    assert scene.generations.failure is FAILURE
    scene.generations.begin_next()
    assert scene.generations.failure is None


@pytest.mark.parametrize("cause", ["killed", "started before"])
def test_three_failed_starts_prove_code_broken_that_may_have_another_cause(cause: str) -> None:
    scene = ReloadScene()
    new = scene.add("w2")
    if cause == "started before":
        scene.join(new)
    code = KILLED if cause == "killed" else 1
    for failed_starts in (1, 2):
        scene.generations.record_failed_start(new, code, failed_starts, FAILURE)
        assert scene.generations.failure is None
    scene.generations.record_failed_start(new, code, 3, FAILURE)
    assert scene.generations.failure is FAILURE
    scene.join(new)
    assert scene.generations.failure is None
