"""How many workers are wanted for the jobs of an endpoint."""

from __future__ import annotations

from typing import Any

from emulator.autoscaling.policy import Demand
from emulator.autoscaling.scaler import Scaler
from emulator.runpod.job_response import worker_key
from emulator.settings.limits import ScalingPolicy
from jobs import MemoryJobStore, NewJob
from tests.unit.emulator.autoscaling.scene import ENDPOINT, AutoscalerScene, build_worker


async def test_jobs_of_the_local_worker_start_no_worker() -> None:
    scene = AutoscalerScene(scaler="count", request_count=1)
    await scene.enqueue(2)
    await scene.take("local", 2)
    await scene.after(1)
    assert scene.processes == []
    await scene.enqueue(1)
    await scene.after(1)
    assert len(scene.processes) == 1


async def test_workers_idle_for_longest_stop_first_down_to_the_minimum() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=3, queue_delay_s=0)
    await scene.enqueue(3)
    await scene.after(1)
    scene.join()
    first, second, third = scene.processes
    jobs = {each.name: await scene.take(each.name) for each in scene.processes}
    await scene.after(1)
    for each in (second, third, first):
        await scene.finish(jobs[each.name])
        await scene.after(1)
    scene.time += 30
    await scene.autoscaler.tick()
    assert [each.terminated for each in (first, second, third)] == [0, 1, 1]


async def test_delay_scaler_adds_workers_up_to_the_maximum() -> None:
    scene = AutoscalerScene(max_workers=3)
    await scene.enqueue(9)
    await scene.after(4)
    assert len(scene.processes) == 1
    await scene.after(4)
    assert len(scene.processes) == 2
    await scene.after(60)
    assert len(scene.processes) == 3


def build_scaler(**scaling: Any) -> Scaler:
    return Scaler(MemoryJobStore(), ENDPOINT, ScalingPolicy(**scaling), None, lambda: 0.0)


async def test_measured_demand_is_without_the_jobs_of_the_local_worker() -> None:
    store = MemoryJobStore(now=lambda: 100.0)
    scaler = Scaler(store, ENDPOINT, ScalingPolicy(), "local", lambda: 107.0)
    for _ in range(4):
        await store.enqueue(NewJob(endpoint=ENDPOINT, input=b"{}"))
    await store.receive(ENDPOINT, worker_key(ENDPOINT, "local"), lease_s=1e9, limit=1)
    await store.receive(ENDPOINT, worker_key(ENDPOINT, "w1"), lease_s=1e9, limit=2)
    assert await scaler.measure_demand() == Demand(queued=1, running=2, waited_s=7.0)


def test_replacement_is_missing_without_demand_until_one_is_started() -> None:
    scaler = build_scaler(max_workers=2)
    assert scaler.count_missing([], Demand(), 0.0, 0) == 0
    scaler.request_replacement()
    assert scaler.count_missing([], Demand(), 0.0, 0) == 1
    scaler.record_start(0.0)
    assert scaler.count_missing([], Demand(), 0.0, 0) == 0


def test_missing_workers_are_limited_by_the_maximum() -> None:
    scaler = build_scaler(max_workers=1)
    scaler.request_replacement()
    scaler.request_replacement()
    assert scaler.count_missing([], Demand(), 0.0, 1) == 1
    assert scaler.count_missing([build_worker("w1")], Demand(), 0.0, 1) == 0


def test_spare_workers_have_polled_and_been_idle_for_longest() -> None:
    scaler = build_scaler(max_workers=3, idle_timeout_s=5)
    workers = [build_worker("loads"), build_worker("late", 4.0), build_worker("early", 1.0)]
    for worker in workers[1:]:
        worker.joined = True
    assert scaler.pick_spare(workers, Demand(), 5.0) == []
    assert scaler.pick_spare(workers, Demand(), 9.0) == [workers[2], workers[1]]
