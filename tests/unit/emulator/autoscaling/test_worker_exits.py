"""The effects of a worker's exit on its jobs, its endpoint and the next start."""

from __future__ import annotations

import pytest

from jobs import JobStatus
from tests.unit.emulator.autoscaling.scene import ENDPOINT, AutoscalerScene


@pytest.mark.parametrize(
    ("code", "output", "reported", "reason"),
    [
        (1, ["Error: x", "  in f"], None, "it exited with code 1; its last line: Error: x"),
        (1, [], "no_model: broken", "it exited with code 1 after it reported: no_model: broken"),
        (1, ["x"], "no_model: broken", "it exited with code 1 after it reported: no_model: broken"),
        (1, [], None, "it exited with code 1 and printed nothing"),
        (139, [], None, "it was killed by SIGSEGV and printed nothing"),
        (
            137,
            ["loading weights 90%"],
            None,
            "it was killed by SIGKILL, as the kernel does when memory runs out; its last line: "
            "loading weights 90%",
        ),
        (
            0,
            [],
            None,
            "it exited with code 0 without starting a worker; it must call "
            'runpod.serverless.start({"handler": handler})',
        ),
    ],
)
async def test_worker_that_cannot_start_is_unhealthy_with_how_it_ended(
    code: int,
    output: list[str],
    reported: str | None,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # R69, R74
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    (first,) = scene.processes
    first.prints = output
    if reported is not None:
        scene.worker_registry.mark_unhealthy(ENDPOINT, first.name, reported)
    first.end(code)
    await scene.after(0.25)
    assert scene.worker_registry.unhealthy_workers(ENDPOINT) == {first.name: reason}
    ending = reason.removeprefix("it ").partition(" after")[0]
    assert f"{first.name} {ending}" in caplog.text


async def test_worker_that_took_a_job_is_replaced_without_backoff() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    for _ in range(6):
        (process,) = scene.alive
        registration = scene.worker_registry.get_or_register(ENDPOINT, process.name)
        await scene.after(0.25)
        registration.has_taken_jobs = True
        process.end(139)
        await scene.after(0.5)
    assert len(scene.processes) == 7


async def test_log_of_a_worker_has_its_output_and_how_it_ended() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    (first,) = scene.processes
    scene.join(first)
    await scene.after(0.25)
    first.end(1)
    await scene.after(0.25)
    log = scene.logs.find(ENDPOINT, first.name)
    assert log is not None
    assert log.is_closed
    assert [(line.source, line.text) for line in log.lines_after(0)] == [
        ("system", f"{first.name} starts"),
        ("system", f"{first.name} asked for its first job"),
        ("container", "first"),
        ("container", "its last line"),
        ("system", f"{first.name} exited with code 1"),
    ]


async def test_job_of_an_exited_worker_is_requeued_immediately() -> None:
    scene = AutoscalerScene(min_workers=1)
    await scene.enqueue()
    await scene.after(1)
    scene.join()
    (job,) = await scene.take(scene.processes[0].name)
    scene.processes[0].end(1)
    await scene.after(0.25)
    now = await scene.store.get(job.id)
    assert now is not None
    assert (now.status, now.lost_attempts) == (JobStatus.IN_QUEUE, 1)
    assert scene.counts == (0, 0, 0)


async def test_job_that_kills_its_workers_fails_with_how_the_last_one_ended() -> None:  # R74
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    (job,) = await scene.enqueue()
    while (now := await scene.store.get(job.id)) and now.status is not JobStatus.FAILED:
        while not scene.alive:
            await scene.after(0.25)
        scene.join(*scene.alive)
        await scene.take(scene.alive[0].name)
        scene.alive[0].end(139)
        await scene.after(0.25)
    assert now is not None
    assert "its worker was killed by SIGSEGV; its last line: its last line" in str(now.error)
