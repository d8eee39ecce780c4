"""Workers that take long to start, never start, or have stopped working."""

from __future__ import annotations

import time

import pytest

from tests.unit.emulator.autoscaling.scene import ENDPOINT, AutoscalerScene


async def test_worker_that_runs_an_ended_job_is_killed_and_replaced() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    (first,) = scene.processes
    scene.join(first)
    await scene.after(0.25)
    registration = scene.worker_registry.get_or_register(ENDPOINT, first.name)
    registration.record_stop(time.monotonic() - 2, 3, "was cancelled")
    await scene.after(0.25)
    assert first.killed == 0
    registration.record_stop(time.monotonic() - 4, 3, "was cancelled")
    await scene.after(0.5)
    assert first.killed == 1
    (second,) = scene.alive
    log = scene.logs.find(ENDPOINT, first.name)
    assert log is not None
    assert "still runs a job that was cancelled, and is stopped" in "\n".join(
        line.text for line in log.lines_after(0)
    )
    # A deliberately stopped worker is not unhealthy, and the next one starts immediately.
    assert scene.worker_registry.unhealthy_workers(ENDPOINT) == {}
    assert second is not first


async def test_worker_that_serves_http_is_reported_as_a_likely_load_balancing_worker() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    (process,) = scene.processes
    process.log.append("container", "INFO:     Uvicorn running on http://0.0.0.0:80")
    await scene.after(29)
    assert scene.worker_registry.unhealthy_workers(ENDPOINT) == {}
    await scene.after(2)
    reason = scene.worker_registry.unhealthy_workers(ENDPOINT)[process.name]
    assert "has not asked for a job in 30 s and serves HTTP itself" in reason
    assert "looks like a load-balancing worker" in reason
    assert process.killed == 0
    # The HTTP server was the backend of a worker that loads slowly.
    scene.join()
    await scene.after(1)
    assert scene.worker_registry.unhealthy_workers(ENDPOINT) == {}


async def test_worker_that_serves_the_test_api_has_not_started() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    (process,) = scene.processes
    process.log.append("container", "INFO   | Starting API server.")
    await scene.after(0.5)
    assert process.killed == 1
    (reason,) = scene.worker_registry.unhealthy_workers(ENDPOINT).values()
    assert reason.startswith("it serves the SDK's own test API")


async def test_time_limit_of_a_start_is_runpods_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_INIT_TIMEOUT", "50")
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(49)
    assert scene.processes[0].killed == 0
    await scene.after(2)
    assert scene.processes[0].killed == 1
    (reason,) = scene.worker_registry.unhealthy_workers(ENDPOINT).values()
    assert reason == (
        "it was killed because it did not ask for a job within 50 s (RUNPOD_INIT_TIMEOUT)"
    )


async def test_worker_that_asks_for_no_job_any_more_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    scene.join()
    (first,) = scene.processes
    registration = scene.worker_registry.get_or_register(ENDPOINT, first.name)
    with registration.poll("take"):
        await scene.after(60)
    assert first.killed == 0
    # Simulate that the worker's last call was long ago.
    monkeypatch.setattr(registration, "_last_job_call_at", -1e9)
    await scene.enqueue()
    jobs = await scene.take(first.name)
    await scene.after(60)
    assert first.killed == 0
    await scene.finish(jobs)
    await scene.after(29)
    assert first.killed == 0
    # Time in which the server itself was suspended does not count.
    scene.time += 600
    await scene.autoscaler.tick()
    assert first.killed == 0
    await scene.after(1)
    assert first.killed == 1
    assert scene.worker_registry.unhealthy_workers(ENDPOINT) == {
        first.name: "it has no job and has not asked for one in 30 s"
    }
    await scene.after(0.5)
    (second,) = scene.alive
    scene.join(second)
    await scene.after(0.25)
    assert scene.worker_registry.unhealthy_workers(ENDPOINT) == {}


async def test_worker_that_requests_a_refresh_is_replaced() -> None:
    scene = AutoscalerScene(idle_timeout_s=60)
    await scene.enqueue()
    await scene.after(5)
    scene.join()
    (first,) = scene.processes
    await scene.finish(await scene.take(first.name))
    scene.worker_registry.get_or_register(ENDPOINT, first.name).requests_replacement = True
    await scene.after(0.5)
    assert first.terminated == 1
    assert len(scene.processes) == 2
    await scene.after(5)
    assert len(scene.processes) == 2


async def test_terminated_worker_is_killed_unless_it_has_a_job() -> None:
    scene = AutoscalerScene()
    await scene.enqueue()
    await scene.after(4)
    scene.join()
    (process,) = scene.processes
    await scene.finish(await scene.take(process.name))
    await scene.after(5.25)
    assert process.terminated == 1
    # It got another job at the same moment.
    await scene.enqueue()
    jobs = await scene.take(process.name)
    await scene.after(60)
    assert process.killed == 0
    await scene.finish(jobs)
    await scene.after(0.5)
    assert process.killed == 1


async def test_worker_that_never_requests_a_job_is_killed() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(400)
    assert scene.processes[0].killed == 0
    await scene.after(30)
    assert scene.processes[0].killed == 1
    await scene.after(30)
    assert len(scene.processes) == 2
