"""The life of workers under an autoscaler, from a waiting job to the shutdown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from emulator.autoscaling.containers.container_engine import ContainerEngine
from emulator.autoscaling.containers.worker_image import WorkerImage
from jobs import JobStatus, MemoryJobStore
from tests.unit.emulator.autoscaling.scene import ENDPOINT, URL, AutoscalerScene
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks, wait_until


async def test_autoscaler_starts_a_worker_for_a_job_and_stops_it_when_idle() -> None:
    scene = AutoscalerScene()
    await scene.after(10)
    assert scene.processes == []
    await scene.enqueue()
    await scene.after(3.75)
    assert scene.processes == []
    await scene.after(0.25)
    (process,) = scene.processes
    assert scene.counts == (1, 0, 0)
    # While the worker loads slowly, no other worker starts for the same job.
    await scene.after(20)
    assert scene.processes == [process]
    scene.join()
    jobs = await scene.take(process.name)
    await scene.after(60)
    assert scene.counts == (0, 0, 1)
    assert process.terminated == 0
    await scene.finish(jobs)
    await scene.after(4.75)
    assert (process.terminated, scene.counts) == (0, (0, 1, 0))
    await scene.after(0.25)
    assert process.terminated == 1
    process.end()
    await scene.after(0.25)
    assert scene.counts == (0, 0, 0)
    await scene.after(60)
    assert len(scene.processes) == 1


async def test_logs_are_closed_when_the_server_ends() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    await scene.autoscaler.drain(0)
    log = scene.logs.find(ENDPOINT, scene.processes[0].name)
    assert log is not None
    assert log.is_closed


async def test_waiting_job_reports_which_worker_starts_or_when() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    assert scene.autoscaler.explain_wait() is None
    await scene.after(0.25)
    await scene.after(12)
    (process,) = scene.processes
    process.log.append("container", "loading shard 2 of 9")
    assert scene.autoscaler.explain_wait() == (
        f"{process.name} has not asked for a job in 12 s; its last line: loading shard 2 of 9"
    )
    scene.join()
    assert scene.autoscaler.explain_wait() is None
    process.end(1)
    scene.worker_registry.forget_worker(ENDPOINT, process.name)
    await scene.after(0.25)
    assert scene.autoscaler.explain_wait() == (
        f"the next worker starts in 1 s: {process.name} exited with code 1; "
        "its last line: its last line"
    )


async def test_command_that_cannot_be_started_is_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = AutoscalerScene(min_workers=1)
    scene.refuses = True
    await scene.after(5)
    assert "no such program" in caplog.text
    assert len(caplog.records) == 3
    scene.refuses = False
    await scene.after(10)
    assert len(scene.alive) == 1


async def test_drain_lets_jobs_finish_and_stops_idle_workers_soon() -> None:
    scene = AutoscalerScene(min_workers=2)
    await scene.enqueue()
    await scene.after(1)
    scene.join()
    busy, idle = scene.processes
    jobs = await scene.take(busy.name)
    draining = asyncio.create_task(scene.autoscaler.drain(20))
    async with asyncio.timeout(30):
        await idle.wait()
    assert (idle.terminated, idle.killed) == (1, 1)
    assert (busy.terminated, busy.killed) == (1, 0)
    await scene.finish(jobs)
    async with asyncio.timeout(30):
        await draining
    assert scene.alive == []


async def test_drain_kills_late_workers_and_requeues_their_jobs_without_a_loss() -> None:
    scene = AutoscalerScene(min_workers=1)
    await scene.enqueue()
    await scene.after(1)
    scene.join()
    (job,) = await scene.take(scene.processes[0].name)
    await scene.autoscaler.drain(0.05)
    assert scene.processes[0].killed == 1
    now = await scene.store.get(job.id)
    assert now is not None
    assert (now.status, now.lost_attempts) == (JobStatus.IN_QUEUE, 0)
    await scene.autoscaler.drain(0)


async def test_drain_kills_workers_when_it_is_cancelled() -> None:
    scene = AutoscalerScene(min_workers=1)
    await scene.enqueue()
    await scene.after(1)
    await scene.take(scene.processes[0].name)
    draining = asyncio.create_task(scene.autoscaler.drain(20))
    await run_ready_tasks()
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    assert scene.processes[0].killed == 1
    async with asyncio.timeout(30):
        await scene.autoscaler.drain(0)


async def test_autoscaler_continues_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clock: VirtualClock
) -> None:
    scene = AutoscalerScene(min_workers=1)
    fail = iter([RuntimeError("a bug")])

    async def stats(endpoint: str) -> Any:
        for error in fail:
            raise error
        return await MemoryJobStore.stats(scene.store, endpoint)

    monkeypatch.setattr(scene.store, "stats", stats)
    scene.autoscaler.start(URL)
    await wait_until(lambda: scene.processes)
    assert "could not be updated" in caplog.text
    await scene.autoscaler.drain(0)


async def test_autoscaler_does_nothing_without_workers() -> None:
    scene = AutoscalerScene(max_workers=0)
    scene.autoscaler.start(URL)
    assert scene.autoscaler._task is None
    await scene.autoscaler.drain(0)


async def test_failed_build_is_a_failure_while_the_image_before_it_goes_on() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    scene.join()
    await scene.after(0.25)
    scene.autoscaler.record_failed_build("was not built: exit code 1", "step 1\nno such package")
    await scene.after(5)
    assert scene.autoscaler.handler_state == "outdated"
    assert scene.autoscaler.failure is not None
    assert scene.autoscaler.failure.output == "step 1\nno such package"
    assert len(scene.processes) == 1
    image = WorkerImage(engine=ContainerEngine("/bin/false"), reference="w")
    scene.autoscaler.use_image(image)
    assert scene.autoscaler.failure is None
    assert scene.autoscaler.generation == 2
    assert (scene.autoscaler.python, scene.autoscaler.command_line) == ("false", "w")
