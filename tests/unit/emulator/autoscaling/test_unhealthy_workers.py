"""Workers count as unhealthy until another worker replaces them."""

from __future__ import annotations

from emulator.autoscaling.unhealthy_workers import UnhealthyWorkers
from emulator.runpod.worker_registry import WorkerRegistry
from jobs import MemoryJobStore
from tests.unit.emulator.autoscaling.scene import ENDPOINT, AutoscalerScene, build_worker


async def test_worker_that_crashes_is_unhealthy_until_another_one_takes_its_place() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    (first,) = scene.processes
    scene.join(first)
    await scene.after(0.25)
    first.end(139)
    await scene.after(0.25)
    assert scene.worker_registry.unhealthy_workers(ENDPOINT) == {
        first.name: "it was killed by SIGSEGV; its last line: its last line"
    }
    await scene.after(1.5)
    scene.join(scene.processes[1])
    await scene.after(0.25)
    assert scene.worker_registry.unhealthy_workers(ENDPOINT) == {}


async def test_restarts_of_a_crash_looping_worker_do_not_add_unhealthy_workers() -> None:
    scene = AutoscalerScene(min_workers=2, max_workers=2)
    for _ in range(4):
        while len(scene.alive) < 2:
            await scene.after(0.25)
        for process in scene.alive:
            process.end(1)
        await scene.after(0.25)
        assert scene.worker_registry.count_workers(ENDPOINT)["unhealthy"] == 2
    while len(scene.alive) < 2:
        await scene.after(0.25)
    scene.join(*scene.alive)
    await scene.after(0.25)
    assert scene.worker_registry.count_workers(ENDPOINT)["unhealthy"] == 0


def build_unhealthy() -> tuple[UnhealthyWorkers, WorkerRegistry]:
    registry = WorkerRegistry(MemoryJobStore(), lease_s=30, grace_s=2)
    return UnhealthyWorkers(registry, ENDPOINT), registry


def test_next_workers_replace_the_unhealthy_ones_in_their_order() -> None:
    unhealthy, _ = build_unhealthy()
    unhealthy.add(build_worker("w1"), "it broke")
    unhealthy.add(build_worker("w2"), "it broke")
    assert [unhealthy.take_name() for _ in range(3)] == ["w1", "w2", None]


def test_warned_worker_is_listed_and_not_replaced() -> None:
    unhealthy, registry = build_unhealthy()
    unhealthy.warn(build_worker("w1"), "it serves HTTP")
    assert registry.unhealthy_workers(ENDPOINT) == {"w1": "it serves HTTP"}
    assert unhealthy.take_name() is None


def test_ended_worker_is_listed_in_place_of_the_one_that_it_replaced() -> None:
    unhealthy, registry = build_unhealthy()
    unhealthy.add(build_worker("w1"), "it broke")
    second = build_worker("w2")
    second.replaces = unhealthy.take_name()
    unhealthy.add_ended(second, 1, "broke as well")
    assert registry.unhealthy_workers(ENDPOINT) == {"w2": "it broke as well"}


def test_clear_shows_neither_waiting_nor_replaced_workers() -> None:
    unhealthy, registry = build_unhealthy()
    unhealthy.add(build_worker("w1"), "it broke")
    unhealthy.add(build_worker("w2"), "it broke")
    successor = build_worker("w3")
    successor.replaces = unhealthy.take_name()
    unhealthy.clear([successor])
    assert registry.unhealthy_workers(ENDPOINT) == {}
    assert (successor.replaces, unhealthy.take_name()) == (None, None)
