"""Scaling: how many workers there are, and what becomes of each; its processes are pretended."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from emulator.autoscaling.autoscaler import Autoscaler
from emulator.autoscaling.policy import Demand, count_missing, count_spare
from emulator.autoscaling.volume import Volume, open_volume
from emulator.autoscaling.worker_log import WorkerLog, WorkerLogs
from emulator.autoscaling.worker_process import (
    spawn_supervised,
    worker_environment,
)
from emulator.autoscaling.worker_program import WorkerProgram
from emulator.bucket.keys import BUCKET_VARIABLES
from emulator.bucket.service import Bucket
from emulator.runpod.job_response import is_managed, worker_key
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.settings.limits import ScalingPolicy
from jobs import Job, JobStatus, MemoryJobStore, NewJob
from tests.integration.emulator.conftest import build_settings
from tests.virtual_time import VirtualClock
from tests.volumes import can_mount
from tests.waiting import run_ready_tasks, wait_until

ENDPOINT = "here"
URL = "http://127.0.0.1:1"


class Process:
    """A process that ends when a test says so; a kill ends it."""

    def __init__(self, name: str, environment: Mapping[str, str], log: WorkerLog) -> None:
        self.name = name
        self.environment = environment
        self.log = log
        self.returncode: int | None = None
        self.prints = ["first", "its last line"]
        self.terminated = 0
        self.killed = 0
        self._over = asyncio.Event()

    def terminate(self) -> None:
        self.terminated += 1

    def kill(self) -> None:
        self.killed += 1
        self.end(137)

    def kill_orphans(self) -> None:
        pass

    def end(self, code: int = 0) -> None:
        for line in self.prints:
            self.log.append("container", line)
        self.returncode = code
        self._over.set()

    async def wait(self) -> int:
        await self._over.wait()
        return self.returncode or 0


class AutoscalerScene:
    """An autoscaler whose clock a test moves on."""

    def __init__(self, **scaling: Any) -> None:
        self.time = 1_000.0
        self.processes: list[Process] = []
        self.refuses = False
        self.store = MemoryJobStore(now=lambda: self.time, monotonic=lambda: self.time)
        self.worker_registry = WorkerRegistry(self.store, lease_s=30, grace_s=2)
        self.logs = WorkerLogs()
        self.autoscaler = Autoscaler(
            self.store,
            self.worker_registry,
            ENDPOINT,
            ScalingPolicy(**scaling),
            logs=self.logs,
            local="local",
            spawn=self._spawn,
            now=lambda: self.time,
            wall_clock=lambda: self.time,
        )
        self.autoscaler._url = URL

    async def _spawn(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None,
        log: WorkerLog,
    ) -> Process:
        if self.refuses:
            raise FileNotFoundError("no such program")
        self.processes.append(Process(name, environment, log))
        return self.processes[-1]

    async def after(self, seconds: float) -> None:
        """Let time pass, with a look at each quarter of a second."""
        end = self.time + seconds
        while self.time < end:
            self.time = min(end, self.time + 0.25)
            await self.autoscaler.tick()

    async def enqueue(self, count: int = 1) -> list[Job]:
        new = NewJob(endpoint=ENDPOINT, input=b"{}")
        return [await self.store.enqueue(new) for _ in range(count)]

    def join(self, *processes: Process) -> None:
        for process in processes or self.processes:
            self.worker_registry.get_or_register(ENDPOINT, process.name)

    async def take(self, name: str, count: int = 1) -> list[Job]:
        return await self.store.receive(
            ENDPOINT, worker_key(ENDPOINT, name), lease_s=1e9, limit=count
        )

    async def finish(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            assert await self.store.ack(job.id, job.attempt, output=b"1")

    @property
    def alive(self) -> list[Process]:
        return [each for each in self.processes if each.returncode is None]

    @property
    def counts(self) -> tuple[int, int, int]:
        counts = self.worker_registry.count_workers(ENDPOINT)
        return counts["initializing"], counts["idle"], counts["running"]


# -- the rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "workers", "starting", "since_s", "missing"),
    [
        (Demand(), 0, 0, 99, 0),
        (Demand(queued=1, waited_s=3.9), 0, 0, 99, 0),
        (Demand(queued=1, waited_s=4), 0, 0, 99, 1),
        (Demand(queued=9, waited_s=99), 1, 0, 99, 1),
        (Demand(queued=9, waited_s=99), 1, 1, 3.9, 0),
        (Demand(queued=9, waited_s=99), 1, 1, 4, 1),
        # It will be taken by the one that is on its way.
        (Demand(queued=1, waited_s=99), 1, 1, 99, 0),
        (Demand(queued=9, waited_s=99), 3, 0, 99, 0),
        (Demand(running=9), 0, 0, 99, 0),
    ],
)
def test_delay_scaler_counts_missing_workers(
    demand: Demand, workers: int, starting: int, since_s: float, missing: int
) -> None:
    assert (
        count_missing(ScalingPolicy(max_workers=3), demand, workers, starting, since_s) == missing
    )


@pytest.mark.parametrize(
    ("demand", "workers", "missing", "spare"),
    [
        (Demand(), 0, 0, 0),
        (Demand(queued=1), 0, 1, 0),
        (Demand(queued=4), 0, 1, 0),
        (Demand(queued=4, running=1), 0, 2, 0),
        (Demand(queued=400), 1, 4, 0),
        (Demand(running=5), 3, 0, 1),
        (Demand(), 2, 0, 2),
    ],
)
def test_count_scaler_counts_missing_and_spare_workers(
    demand: Demand, workers: int, missing: int, spare: int
) -> None:
    scaling = ScalingPolicy(max_workers=5, scaler="count")
    assert count_missing(scaling, demand, workers, 0) == missing
    assert count_spare(scaling, demand, workers) == spare


def test_minimum_and_maximum_of_workers() -> None:
    scaling = ScalingPolicy(min_workers=2, max_workers=3, scaler="count", request_count=1)
    assert [count_missing(scaling, Demand(queued=n), 0, 0) for n in range(5)] == [2, 2, 2, 3, 3]
    assert count_missing(scaling, Demand(), 3, 0) == 0
    assert [count_spare(scaling, Demand(), n) for n in range(4)] == [0, 0, 0, 1]
    assert count_missing(ScalingPolicy(max_workers=0), Demand(queued=1, waited_s=99), 0, 0) == 0
    assert count_missing(ScalingPolicy(min_workers=1), Demand(), 0, 0) == 1
    # A worker that is idle takes what waits.
    assert count_spare(ScalingPolicy(), Demand(queued=1), 1) == 0


# -- the life of a worker -------------------------------------------------------------------------


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
    # It takes its time to load, and no other is started for the same job.
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


async def test_delay_scaler_adds_workers_up_to_the_maximum() -> None:
    scene = AutoscalerScene(max_workers=3)
    await scene.enqueue(9)
    await scene.after(4)
    assert len(scene.processes) == 1
    await scene.after(4)
    assert len(scene.processes) == 2
    await scene.after(60)
    assert len(scene.processes) == 3


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


async def test_jobs_of_the_local_worker_start_no_worker() -> None:
    scene = AutoscalerScene(scaler="count", request_count=1)
    await scene.enqueue(2)
    await scene.take("local", 2)
    await scene.after(1)
    assert scene.processes == []
    await scene.enqueue(1)
    await scene.after(1)
    assert len(scene.processes) == 1


async def test_crashing_worker_is_restarted_with_a_growing_backoff() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    starts = []
    for _ in range(9):
        while not scene.alive:
            await scene.after(0.25)
        starts.append(scene.time)
        scene.alive[0].end(1)
    pauses = [later - sooner for sooner, later in itertools.pairwise(starts)]
    assert pauses == [pytest.approx(each, abs=0.5) for each in (1, 2, 4, 8, 16, 32, 60, 60)]
    # One that has worked for a while had another fault.
    while not scene.alive:
        await scene.after(0.25)
    scene.join(scene.alive[0])
    await scene.after(31)
    scene.alive[0].end(1)
    await scene.after(1.5)
    assert scene.alive


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
    # It was stopped, so it is not unhealthy, and the next one starts at once.
    assert scene.worker_registry.unhealthy_workers(ENDPOINT) == {}
    assert second is not first


async def test_log_of_a_worker_has_what_it_printed_and_how_it_ended() -> None:
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


async def test_log_of_a_worker_that_cannot_be_started_has_the_reason() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    scene.refuses = True
    await scene.after(0.25)
    log = scene.logs.find(ENDPOINT, f"launched-{scene.autoscaler._series}-1")
    assert log is not None
    assert log.is_closed
    assert log.lines_after(0)[0].text.endswith("could not be started: no such program")


async def test_logs_are_closed_when_the_server_ends() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    await scene.autoscaler.drain(0)
    log = scene.logs.find(ENDPOINT, scene.processes[0].name)
    assert log is not None
    assert log.is_closed


async def test_crash_looping_worker_is_counted_as_unhealthy_once() -> None:
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


async def test_worker_that_took_a_job_is_replaced_at_once_however_often_that_happens() -> None:
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


async def test_worker_that_serves_http_is_named_with_what_it_looks_like() -> None:
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
    # It was the backend of a worker that needed its time.
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
    # As after its last call, which was long ago.
    monkeypatch.setattr(registration, "_last_job_call_at", -1e9)
    await scene.enqueue()
    jobs = await scene.take(first.name)
    await scene.after(60)
    assert first.killed == 0
    await scene.finish(jobs)
    await scene.after(29)
    assert first.killed == 0
    # A moment in which the server itself was stopped does not count.
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


async def test_waiting_job_says_which_worker_starts_or_when_one_does() -> None:
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


async def test_job_of_an_exited_worker_is_requeued_at_once() -> None:
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


# -- the environment of a worker -----------------------------------------------------------------


def test_worker_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MODEL_PATH": "m.gguf",
        "API_KEYS": "one,two",
        "WORKERS": "3",
        "WORKER_COMMAND": "x",
        "RUNPOD_POD_ID": "another",
        "RUNPOD_REALTIME_PORT": "1",
        "RUNPOD_EARLY_FITNESS_CHECKS_DONE": "1",
        "RUNPOD_LOG_LEVEL": "WARN",
    }.items():
        monkeypatch.setenv(name, value)
    found = worker_environment(URL, "mine", "w1", "one")
    assert found["MODEL_PATH"] == "m.gguf"
    assert found["RUNPOD_LOG_LEVEL"] == "WARN"
    assert not {"API_KEYS", "RUNPOD_REALTIME_PORT"} & found.keys()
    base = f"{URL}/v2/mine"
    assert {name: value for name, value in found.items() if "WEBHOOK" in name} == {
        "RUNPOD_WEBHOOK_GET_JOB": f"{base}/job-take/$ID?gpu=local",
        "RUNPOD_WEBHOOK_POST_OUTPUT": f"{base}/job-done/$RUNPOD_POD_ID/$ID?gpu=local",
        "RUNPOD_WEBHOOK_POST_STREAM": f"{base}/job-stream/$RUNPOD_POD_ID/$ID?gpu=local",
        "RUNPOD_WEBHOOK_PING": f"{base}/ping/$RUNPOD_POD_ID?gpu=local",
    }
    assert (found["RUNPOD_POD_ID"], found["RUNPOD_ENDPOINT_ID"]) == ("w1", "mine")
    assert found["RUNPOD_AI_API_KEY"] == "one"
    assert found["RUNPOD_LOG_CAPTURE"] == "all"
    assert "RUNPOD_EARLY_FITNESS_CHECKS_DONE" not in found
    assert found["RUNPOD_SKIP_GPU_CHECK"] == found["RUNPOD_SKIP_AUTO_SYSTEM_CHECKS"] == "true"
    monkeypatch.delenv("RUNPOD_LOG_LEVEL")
    assert worker_environment(URL, "mine", "w1", None)["RUNPOD_LOG_LEVEL"] == "INFO"
    assert "RUNPOD_AI_API_KEY" not in worker_environment(URL, "mine", "w1", None)
    found = worker_environment(URL, "mine", "w1", "one", "own")
    urls = [value for name, value in found.items() if "WEBHOOK" in name]
    assert all(each.endswith("?gpu=local&worker_key=own") for each in urls)


def test_handler_gets_the_variables_of_the_shell_and_of_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = {
        "HOST": "db.example.com",
        "PORT": "5432",
        "WORKERS": "3",
        "RUNPOD_VOLUME": "/data",
        "RUNPOD_ENDPOINT_ID": "another",
    }
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("API_KEYS", "secret")
    file = {"HOST": "of the file", "TOKEN": "t", "RUNPOD_POD_ID": "x", "API_KEYS": "of the handler"}
    found = worker_environment(URL, "mine", "w1", None, variables=file)
    assert {name: found[name] for name in shell} == shell | {"RUNPOD_ENDPOINT_ID": "mine"}
    # The file has variables that the shell has not, and none of those that make it a worker.
    assert (found["TOKEN"], found["RUNPOD_POD_ID"]) == ("t", "w1")
    assert found["API_KEYS"] == "of the handler"
    own = worker_environment(URL, "mine", "w1", None, is_own_worker=True)
    assert not {"HOST", "PORT", "WORKERS"} & own.keys()


@pytest.mark.parametrize("allows", [True, False])
def test_handler_that_calls_an_endpoint_calls_this_server(
    monkeypatch: pytest.MonkeyPatch, allows: bool
) -> None:
    for name in (
        *("RUNPOD_ENDPOINT_BASE_URL", "RUNPOD_ALLOW_PRIVATE_DOWNLOAD_URLS"),
        "RUNPOD_API_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    found = worker_environment(URL, "mine", "w1", None, allows_private_targets=allows)
    assert found["RUNPOD_ENDPOINT_BASE_URL"] == f"{URL}/v2"
    assert found["RUNPOD_ALLOW_PRIVATE_DOWNLOAD_URLS"] == ("true" if allows else "false")
    assert found["RUNPOD_API_KEY"] == "local"
    assert worker_environment(URL, "mine", "w1", "a-key")["RUNPOD_API_KEY"] == "a-key"
    cloud = {"RUNPOD_ENDPOINT_BASE_URL": "https://api.runpod.ai/v2"}
    found = worker_environment(URL, "mine", "w1", None, variables=cloud)
    assert found["RUNPOD_ENDPOINT_BASE_URL"] == cloud["RUNPOD_ENDPOINT_BASE_URL"]


def test_start_script_finds_the_python_of_the_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    python = tmp_path / "bin" / "python3"
    path = worker_environment(URL, ENDPOINT, "w", None, python=str(python))["PATH"]
    assert path == "/usr/bin"
    python.parent.mkdir()
    (tmp_path / "bin" / "python").touch(0o755)
    path = worker_environment(URL, ENDPOINT, "w", None, python=str(python))["PATH"]
    assert path == f"{tmp_path}/bin:/usr/bin"


async def test_workers_key_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    program = "print('no answer from /ping/w1?gpu=local&worker_key=own-_1&job_id=a')"
    process = await spawn_supervised(
        "w1", [sys.executable, "-S", "-c", program], {}, None, WorkerLog()
    )
    async with asyncio.timeout(30):
        assert await process.wait() == 0
    assert "w1: no answer from /ping/w1?gpu=local&worker_key=…&job_id=a" in caplog.messages


async def test_worker_names_have_the_prefix_and_differ() -> None:
    names = []
    for scene in (AutoscalerScene(min_workers=2), AutoscalerScene(min_workers=2)):
        await scene.after(1)
        names += [process.name for process in scene.processes]
    assert len(set(names)) == 4
    assert all(is_managed(name) for name in names)
    assert not is_managed("local")


# -- a real process under its supervisor ----------------------------------------------------------


PARENT = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
def end(*_):
    print("told", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print("x" * 100_000, flush=True)
print(child.pid, os.getpid(), os.environ["NAME"], flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(*pids: int) -> None:
    await wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize(("how", "code"), [("terminate", 7), ("kill", 137), ("crash", 139)])
async def test_children_of_a_worker_end_with_it(
    how: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    command = [sys.executable, "-S", "-c", PARENT]
    process = await spawn_supervised("w1", command, {"NAME": "its name"}, None, WorkerLog())
    await wait_until(lambda: "its name" in caplog.text)
    line = next(each for each in caplog.messages if "its name" in each)
    assert line.startswith("w1: ")
    child, worker = map(int, line.split()[1:3])
    assert alive(child)
    assert alive(worker)
    if how == "terminate":
        process.terminate()
    elif how == "kill":
        process.kill()
    else:
        os.kill(worker, signal.SIGSEGV)
    async with asyncio.timeout(30):
        assert await process.wait() == code
    assert process.returncode == code
    await gone(child, worker)
    assert ("told" in caplog.text) == (how == "terminate")
    process.terminate()
    process.kill()


async def test_children_of_a_worker_end_when_its_supervisor_was_killed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    command = [sys.executable, "-S", "-c", PARENT]
    process = await spawn_supervised("w1", command, {"NAME": "its name"}, None, WorkerLog())
    await wait_until(lambda: "its name" in caplog.text)
    line = next(each for each in caplog.messages if "its name" in each)
    child, worker = map(int, line.split()[1:3])
    process.kill_orphans()
    assert alive(child)
    os.kill(process._process.pid, signal.SIGKILL)
    await wait_until(lambda: process.returncode is not None)
    process.kill_orphans()
    await gone(child, worker)
    async with asyncio.timeout(30):
        await process.wait()


async def test_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    with pytest.raises(FileNotFoundError, match=f"there is no folder {folder}"):
        await spawn_supervised("w1", [sys.executable], {}, folder, WorkerLog())


async def test_missing_command_exits_with_127(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    process = await spawn_supervised("w1", ["/no/such/program"], {}, None, WorkerLog())
    async with asyncio.timeout(30):
        assert await process.wait() == 127
    assert "w1: /no/such/program cannot be started: No such file" in caplog.text


async def test_worker_writes_into_the_folder_of_its_volume(tmp_path: Path) -> None:
    volume = open_volume(tmp_path)
    code = "import pathlib; pathlib.Path('/runpod-volume/x').write_text('1')"
    log = WorkerLog()
    command = [sys.executable, "-I", "-S", "-c", code]
    process = await spawn_supervised("w1", command, {}, None, log, volume=volume)
    async with asyncio.timeout(30):
        code_of_exit = await process.wait()
    lines = [line.text for line in log.lines_after(0)]
    if can_mount():
        assert (code_of_exit, lines) == (0, [])
        assert (tmp_path / "x").read_text() == "1"
    else:
        assert lines[0] == volume.problem


async def test_worker_without_its_volume_is_told_so_in_its_log(tmp_path: Path) -> None:
    log = WorkerLog()
    command = [sys.executable, "-I", "-S", "-c", ""]
    volume = Volume(tmp_path, "it cannot be mounted")
    process = await spawn_supervised("w1", command, {}, None, log, volume=volume)
    async with asyncio.timeout(30):
        assert await process.wait() == 0
    assert [(line.source, line.text) for line in log.lines_after(0)] == [
        ("system", "it cannot be mounted")
    ]


async def test_worker_gets_the_servers_bucket_unless_the_user_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = AutoscalerScene(max_workers=1, min_workers=1)
    bucket = scene.autoscaler._bucket = Bucket(build_settings({"job_db": ":memory:"}))
    await bucket.start()
    for name in BUCKET_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    users: dict[str, str] = {"BUCKET_ACCESS_KEY_ID": "mine"}
    for variables, has_bucket in (({}, True), (users, False)):
        scene.autoscaler._program = WorkerProgram(command=("x",), extra_variables=variables)
        await scene.autoscaler._start_worker(0.0)
        started = scene.processes[-1]
        assert (started.environment.get("BUCKET_ENDPOINT_URL") == f"{URL}/s3") is has_bucket
        assert ("bucket of this server" in str(started.log.lines_after(0))) is has_bucket
    await bucket.close()
