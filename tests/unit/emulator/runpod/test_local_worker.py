"""The in-process worker: when a job is taken, how it ends, and that no slot is ever lost."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest

import emulator.runpod.local_worker
from emulator.runpod.job_response import LOCAL_WORKER_NAME, worker_key
from emulator.runpod.local_worker import LocalWorker
from emulator.runpod.worker_registry import WorkerRegistry
from engine import BackendConfig, Engine, EngineState, GenerationRequest, Priority
from engine.hooks import (
    EngineEvent,
    FirstToken,
    Hook,
    HostLoaded,
    RequestEnded,
    RequestQueued,
    RequestStarted,
)
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline
from jobs import (
    Job,
    JobStatus,
    Limits,
    MemoryJobStore,
    NewJob,
    Policy,
    StoreUnavailable,
)
from jobs.ports import NoJournal
from tests.conftest import EngineFactory, ScriptFactory
from tests.unit.emulator.events import DEADLINE_S, EventRecorder
from tests.waiting import poll_until, run_ready_tasks, wait_until

HANG = {"hang_s": 3600}
ENDPOINT = "here"
SLOW = {"when": "slow", "pieces": ["a", {"text": "b", "delay_ms": 150}]}


class Disk(NoJournal):
    """A journal that refuses writes while it is `full`."""

    full = False

    async def flush(self) -> None:
        await run_ready_tasks(1)
        if self.full:
            raise StoreUnavailable("the disk is full")


class Worker:
    """A worker, its store and its engine."""

    def __init__(
        self,
        engine: Engine,
        events: EventRecorder,
        mode: Literal["aggregate", "generator"] = "aggregate",
        limits: Limits | None = None,
    ) -> None:
        self.engine = engine
        self.events = events
        self.disk = Disk()
        self.store = MemoryJobStore(limits, self.disk)
        self.worker_registry = WorkerRegistry(self.store, lease_s=30, grace_s=2)
        jobs = JobHandler(Pipeline(engine, "scripted"), interval_s=0)
        self.worker = LocalWorker(
            self.store, jobs, engine, self.worker_registry, ENDPOINT, mode, retry_delay_s=0.02
        )
        self.at_load: list[int] = []

    def on_event(self, event: EngineEvent) -> None:
        if isinstance(event, HostLoaded):
            self.at_load.append(
                len(self.store.list_leased_jobs(worker_key(ENDPOINT, LOCAL_WORKER_NAME)))
            )

    async def enqueue(self, *prompts: str, **fields: Any) -> list[Job]:
        return [await self.send({"prompt": prompt}, **fields) for prompt in prompts]

    async def send(self, job_input: Any, **fields: Any) -> Job:
        new = NewJob(endpoint=ENDPOINT, input=orjson.dumps(job_input), **fields)
        return await self.store.enqueue(new)

    async def now(self, job: Job) -> Job:
        stored = await self.store.get(job.id)
        assert stored is not None
        return stored

    async def ended(self, job: Job) -> Job:
        async with asyncio.timeout(DEADLINE_S):
            ended = await self.store.wait(job.id, 3600)
        assert ended is not None
        assert ended.status.is_final
        return ended

    async def text(self, job: Job) -> str:
        ended = await self.ended(job)
        assert ended.error is None
        return str(orjson.loads(ended.output or b"")["choices"][0]["text"])

    @property
    def worker_counts(self) -> dict[str, int]:
        """Return the number of the endpoint's workers in each state that a local one can have."""
        counts = self.worker_registry.count_workers(ENDPOINT)
        return {name: counts[name] for name in ("idle", "ready", "running", "unhealthy")}

    async def quiet(self) -> None:
        """Wait until no job runs and no slot is used or awaited."""
        engine = self.engine
        await wait_until(lambda: not (engine.running or engine.waiting or self.worker._running))


@asynccontextmanager
async def working(
    engine_factory: EngineFactory,
    script: Path,
    isolation: str = "thread",
    abort_grace_s: float = 2,
    neighbour_grace_s: float = 60,
    **options: Any,
) -> AsyncIterator[Worker]:
    config = BackendConfig.from_wire("scripted", {"model_path": str(script)})
    events = EventRecorder()
    hooks: list[Hook] = [events, lambda event: local_worker.on_event(event)]
    engine = engine_factory(
        config,
        hooks,
        isolation=isolation,
        abort_grace_s=abort_grace_s,
        neighbour_grace_s=neighbour_grace_s,
    )
    local_worker: Worker = Worker(engine, events, **options)
    await local_worker.store.start()
    local_worker.worker.start()
    try:
        yield local_worker
    finally:
        await local_worker.worker.close()
        await local_worker.store.close()


@asynccontextmanager
async def on_a_slow_job(
    engine_factory: EngineFactory, script: ScriptFactory
) -> AsyncIterator[tuple[Worker, Job]]:
    """Yield a worker that is running a job with the output "ab"."""
    async with working(engine_factory, script(SLOW, slots=1)) as at:
        (job,) = await at.enqueue("slow")
        await at.events.wait(RequestStarted)
        yield at, job


async def test_jobs_complete_with_their_output(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({"pieces": ["yes", " sir"]})) as at:
        for job in await at.enqueue(*"abcdefgh"):
            ended = await at.ended(job)
            output = orjson.loads(ended.output or b"")
            assert output["choices"][0]["text"] == "yes sir"
            assert output["id"] == job.id
            assert ended.worker_id == "here/local"
        await at.quiet()
        assert at.worker_registry.count_workers(ENDPOINT)["idle"] == 4


async def test_bad_job_fails_and_the_next_completes(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:  # R50
    pieces = [{"error": "no such luck"}]
    async with working(
        engine_factory, script({"when": "bad", "pieces": pieces}, {"pieces": ["ok"]}, slots=1)
    ) as at:
        empty = await at.send({"nothing": "of use"})
        bad, good = await at.enqueue("bad", "good")
        error = (await at.ended(empty)).error
        assert str(error).startswith("input must have prompt, messages, openai_input")
        assert str(error).endswith("got only nothing")
        assert (await at.ended(bad)).error == "no such luck"
        assert await at.text(good) == "ok"


async def test_one_job_runs_per_slot(engine_factory: EngineFactory, script: ScriptFactory) -> None:
    async with working(engine_factory, script({"pieces": ["a", HANG]}, slots=3)) as at:
        jobs = await at.enqueue(*"abcde")
        await at.events.wait(RequestStarted, 3)
        running = JobStatus.IN_PROGRESS
        assert [(await at.now(job)).status for job in jobs].count(running) == 3
        counts = at.worker_registry.count_workers(ENDPOINT)
        assert (counts["idle"], counts["running"]) == (0, 3)
        await at.store.cancel(jobs[1].id)
        started = await at.events.wait(RequestStarted, 4)
        assert [event.request_id for event in started] == [job.id for job in jobs[:4]]
        assert (await at.now(jobs[4])).status is JobStatus.IN_QUEUE


async def test_no_job_is_taken_before_the_model_is_loaded(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({"pieces": ["ok"]}, load_ms=300)) as at:
        job = (await at.enqueue("early"))[0]
        await at.events.wait(HostLoaded)
        assert at.at_load == [0]
        ended = await at.ended(job)
        assert ended.delay_ms is not None
        assert ended.execution_ms is not None


async def test_no_job_is_taken_when_the_model_cannot_be_loaded(
    engine_factory: EngineFactory, script: ScriptFactory, caplog: pytest.LogCaptureFixture
) -> None:  # R69
    async with working(engine_factory, script({}, load_error="the file is broken")) as at:
        jobs = await at.enqueue(*(str(number) for number in range(200)))
        await wait_until(lambda: "no more jobs are taken" in caplog.text)
        assert {(await at.now(job)).status for job in jobs} == {JobStatus.IN_QUEUE}
        assert at.worker_counts == {
            "idle": 0,
            "ready": 0,
            "running": 0,
            "unhealthy": at.engine.slots,
        }
    assert "they stay in the queue: the file is broken" in caplog.text


async def test_waiting_jobs_stay_queued_when_the_engine_dies(
    engine_factory: EngineFactory, script: ScriptFactory, caplog: pytest.LogCaptureFixture
) -> None:
    # A deaf thread cannot be ended. This one ends by its script, long after the engine has died.
    path = script({"pieces": [{"hang_s": 3, "deaf": True}]}, slots=1)
    async with working(engine_factory, path, abort_grace_s=0.2) as at:
        deaf, *waiting = await at.enqueue("a", "b", "c")
        await at.events.wait(RequestStarted)
        await at.store.cancel(deaf.id)
        await wait_until(lambda: at.engine.state is EngineState.DEAD)
        await wait_until(lambda: "no more jobs are taken" in caplog.text)
        assert [(await at.now(job)).status for job in waiting] == [JobStatus.IN_QUEUE] * 2
        await wait_until(lambda: not at.worker._running)
        assert at.worker_counts == {"idle": 0, "ready": 0, "running": 0, "unhealthy": 1}


async def test_waiting_for_a_slot_is_delay_and_not_execution(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script(SLOW, slots=1)) as at:
        first, second = [await at.ended(job) for job in await at.enqueue("slow", "slow")]
        for ended in (first, second):
            assert ended.delay_ms is not None
            assert ended.execution_ms is not None
            assert ended.execution_ms >= 150
        assert first.ended_at is not None
        assert second.started_at is not None
        assert second.started_at >= first.ended_at - 0.002


async def test_interactive_requests_go_before_jobs(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script(SLOW, {"pieces": ["ok"]}, slots=1)) as at:
        jobs = await at.enqueue("slow", "b", "c")
        await at.events.wait(RequestStarted)
        request = GenerationRequest(prompt="x", request_id="chat", priority=Priority.INTERACTIVE)
        async with await at.engine.generate(request) as stream:
            async for _ in stream:
                pass
        for job in jobs:
            await at.ended(job)
        started = [event.request_id for event in at.events.of(RequestStarted)]
        assert started == [jobs[0].id, "chat", jobs[1].id, jobs[2].id]


async def test_slot_is_released_when_its_job_was_cancelled(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({"pieces": ["a", HANG]}, slots=1)) as at:
        running, waiting = await at.enqueue("a", "b")
        await at.events.wait(RequestStarted)
        await wait_until(lambda: at.engine.waiting)
        await at.store.cancel(waiting.id)
        await at.store.cancel(running.id)
        await at.quiet()
        assert at.events.of(RequestQueued) == []
        (third,) = await at.enqueue("c")
        assert (await at.events.wait(RequestStarted, 2))[1].request_id == third.id


async def test_cancel_stops_the_generation_and_frees_its_slot(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:  # R31
    path = script({"pieces": ["bla "], "repeat": -1, "delay_ms": 5}, slots=1, context_length=10**6)
    async with working(engine_factory, path) as at:
        for count in range(1, 6):
            (job,) = await at.enqueue("x")
            await at.events.wait(FirstToken, count)
            cancelled = await at.store.cancel(job.id)
            assert cancelled is not None
            assert cancelled.status is JobStatus.CANCELLED
            (*_, end) = await at.events.wait(RequestEnded, count)
            assert end.aborted
            await at.quiet()


async def test_execution_timeout_ends_the_job_and_its_run(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({"pieces": ["a", HANG]}, slots=1)) as at:
        first, second = await at.enqueue("a", "b", policy=Policy(execution_timeout_ms=200))
        for job in (first, second):
            ended = await at.ended(job)
            assert ended.status is JobStatus.TIMED_OUT
            assert ended.execution_ms is not None
            assert ended.execution_ms >= 200
        await at.quiet()


async def test_running_job_is_stopped_when_its_ttl_ends(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({"pieces": ["a", HANG]}, slots=1)) as at:
        (job,) = await at.enqueue("a", policy=Policy(ttl_ms=200))
        await at.events.wait(RequestEnded)
        assert await at.store.get(job.id) is None
        await at.quiet()


async def test_retry_of_a_job_that_is_still_stopping_runs(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    deaf = {"hang_s": 0.4, "deaf": True}
    path = script({"pieces": ["a", deaf, "b"]}, slots=2)
    async with working(engine_factory, path) as at:
        (job,) = await at.enqueue("a", policy=Policy(execution_timeout_ms=50))
        assert (await at.ended(job)).status is JobStatus.TIMED_OUT
        assert (await at.now(job)).attempt == 1
        await at.store.retry(job.id)
        assert (await at.ended(job)).status is JobStatus.TIMED_OUT
        assert (await at.now(job)).attempt == 2
        await at.quiet()


async def test_job_fails_after_three_crashes_and_waiting_jobs_complete(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:  # R50
    crash = {"when": "crash", "pieces": ["a", {"signal": "SIGKILL", "delay_ms": 50}]}
    path = script(crash, {"pieces": ["ok"]}, slots=1)
    async with working(engine_factory, path, "process") as at:
        bad, *good = await at.enqueue("crash", "b", "c", "d")
        ended = await at.ended(bad)
        assert (ended.status, ended.lost_attempts) == (JobStatus.FAILED, 3)
        assert ended.error == (
            "the job was started and lost 3 times; the last time: the engine process was killed "
            "by SIGKILL while the request was running on it"
        )
        # While the engine has no process, no job is leased and no slot is in use.
        assert [(await at.now(job)).status for job in good] == [JobStatus.IN_QUEUE] * 3
        assert at.engine.running == 0
        assert [await at.text(job) for job in good] == ["ok"] * 3
        assert {(await at.now(job)).lost_attempts for job in good} == {0}
        await at.quiet()


async def test_neighbours_of_a_job_that_crashes_the_engine_complete(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    crash = {"when": "crash", "pieces": ["a", {"signal": "SIGKILL", "delay_ms": 50}]}
    slow = {"when": "slow", "pieces": ["so "], "repeat": 10, "delay_ms": 50}
    async with working(engine_factory, script(crash, slow, slots=4), "process") as at:
        first, bad, *others = await at.enqueue("slow", "crash", "slow", "slow", "slow")
        assert (await at.ended(bad)).lost_attempts == 3
        for job in (first, *others):
            assert await at.text(job) == "so " * 10
            # The other jobs did not run during the last crash.
            assert (await at.now(job)).lost_attempts <= 2
        await at.quiet()


async def test_last_attempt_of_a_job_runs_without_other_jobs(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script(SLOW, slots=4), "process") as at:
        jobs = await at.enqueue("slow", "slow")
        max_running = 0

        def look(event: EngineEvent) -> None:
            nonlocal max_running
            if isinstance(event, RequestStarted):
                max_running = max(max_running, at.engine.running)

        at.engine.subscribe(look)
        for job in jobs:
            # Simulate two earlier crashes.
            entry = at.store._state.table.get(job.id)
            at.store._state.table.set_job(entry, entry.job.replace(lost_attempts=2))
        assert [await at.text(job) for job in jobs] == ["ab"] * 2
        assert max_running <= 1


async def test_job_interrupted_by_another_requests_hang_is_requeued_without_a_lost_attempt(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    deaf = {"when": "deaf", "pieces": [{"hang_s": 3600, "deaf": True}]}
    path = script(deaf, {"pieces": ["a", HANG]}, slots=2)
    async with working(
        engine_factory, path, "process", abort_grace_s=0.1, neighbour_grace_s=0.1
    ) as at:
        bad, job = await at.enqueue("deaf", "b")
        await at.events.wait(RequestStarted, 2)
        await at.store.cancel(bad.id)
        await at.events.wait(RequestStarted, 3)
        now = await at.now(job)
        assert (now.status, now.attempt, now.lost_attempts) == (JobStatus.IN_PROGRESS, 2, 0)


async def test_stream_restarts_after_a_crash(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    path = script({"pieces": ["a", HANG]}, slots=1)
    async with working(engine_factory, path, "process") as at:
        job = await at.send({"prompt": "x", "stream": True})
        async with asyncio.timeout(DEADLINE_S):
            first = await at.store.read_chunks(job.id, (0, 0), 3600)
            os.kill(at.engine._host.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            second = await at.store.read_chunks(job.id, (first[-1].attempt, first[-1].number), 3600)
        assert [chunk.attempt for chunk in (*first, *second)] == [1, 2]


async def test_generator_mode_streams_while_it_runs(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    pieces = ["one", {"text": " two", "delay_ms": 50}, {"text": " three", "delay_ms": 100}]
    async with working(engine_factory, script({"pieces": pieces}), mode="generator") as at:
        job = await at.send({"prompt": "x", "stream": True})
        streamed: list[Any] = []
        while chunks := await at.store.take_chunks(job.id, DEADLINE_S):
            now = await at.now(job)
            streamed += [(now.status, orjson.loads(chunk.value)) for chunk in chunks]
        assert [at_[0] for at_ in streamed[:2]] == [JobStatus.IN_PROGRESS] * 2
        texts = [each["choices"][0]["text"] for _, each in streamed]
        assert texts == ["one", " two", " three", "one two three"]
        ended = await at.ended(job)
        assert orjson.loads(ended.output or b"") == [each for _, each in streamed]


async def test_generator_mode_fails_as_a_job_does(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    path = script({"pieces": ["one", {"error": "no more", "delay_ms": 30}]}, slots=1)
    async with working(engine_factory, path, mode="generator") as at:
        job = await at.send({"prompt": "x", "stream": True})
        ended = await at.ended(job)
        assert (ended.status, ended.error) == (JobStatus.FAILED, "no more")
        assert len(await at.store.take_chunks(job.id, 0)) == 1
        await at.quiet()


async def test_stream_that_is_too_long_is_an_error(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    path = script({"pieces": ["bla "], "repeat": 100, "delay_ms": 1}, slots=1)
    limits = Limits(max_stream_bytes=1_000)
    async with working(engine_factory, path, mode="generator", limits=limits) as at:
        job = await at.send({"prompt": "x", "stream": True})
        assert "a job may stream 1,000 bytes" in ((await at.ended(job)).error or "")
        await at.quiet()


async def test_drain_finishes_running_jobs_and_takes_no_more(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script(SLOW, {"pieces": ["ok"]}, slots=1)) as at:
        running, waiting = await at.enqueue("slow", "b")
        await at.events.wait(RequestStarted)
        await at.worker.drain(DEADLINE_S)
        assert (await at.now(running)).status is JobStatus.COMPLETED
        assert (await at.now(waiting)).status is JobStatus.IN_QUEUE
        await at.quiet()


async def test_drain_requeues_unfinished_jobs_without_a_lost_attempt(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({"pieces": ["a", HANG]}, slots=2)) as at:
        jobs = await at.enqueue("a", "b", "c")
        await at.events.wait(RequestStarted, 2)
        async with asyncio.timeout(DEADLINE_S):
            await at.worker.drain(0.05)
        for job in jobs:
            now = await at.now(job)
            assert (now.status, now.lost_attempts, now.worker_id) == (JobStatus.IN_QUEUE, 0, None)
        await at.quiet()


async def test_drain_before_the_model_is_loaded(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({}, load_ms=200)) as at:
        (job,) = await at.enqueue("a")
        async with asyncio.timeout(DEADLINE_S):
            await at.worker.drain(DEADLINE_S)
        assert (await at.now(job)).status is JobStatus.IN_QUEUE


async def test_job_whose_task_never_started_is_requeued(
    engine_factory: EngineFactory, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(engine_factory, script({"pieces": ["ok"]}, slots=1)) as at:
        receive = at.store.receive

        def cancel() -> None:
            for task in at.worker._running:
                task.cancel()

        async def received(*args: Any, **named: Any) -> list[Job]:
            jobs = await receive(*args, **named)
            asyncio.get_running_loop().call_soon(cancel)
            return jobs

        monkeypatch.setattr(at.store, "receive", received)
        (job,) = await at.enqueue("a")

        async def is_taken() -> bool:
            return (await at.now(job)).status is not JobStatus.IN_QUEUE

        await poll_until(is_taken, DEADLINE_S, gap_s=0)
        await run_ready_tasks(1)
        await at.worker.close()
        assert (await at.now(job)).status is JobStatus.IN_QUEUE
        assert at.engine.running == 0


async def test_result_is_retried_until_the_disk_accepts_it(
    engine_factory: EngineFactory, script: ScriptFactory, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(engine_factory, script(SLOW, {"pieces": ["ok"]}, slots=1)) as at:
        first, second = await at.enqueue("slow", "b")
        await at.events.wait(RequestStarted)
        at.disk.full = True
        # Waiting for the disk needs no slot.
        await at.events.wait(RequestEnded, 2)
        await wait_until(lambda: "has to wait: the disk is full" in caplog.text)
        assert (await at.now(first)).status is JobStatus.IN_PROGRESS
        at.disk.full = False
        assert await at.text(first) == "ab"
        assert await at.text(second) == "ok"
        assert len(at.events.of(RequestStarted)) == 2
    assert "has to wait: the disk is full" in caplog.text


async def test_drain_ends_when_the_disk_stays_full(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with on_a_slow_job(engine_factory, script) as (at, job):
        at.disk.full = True
        await at.events.wait(RequestEnded)
        async with asyncio.timeout(DEADLINE_S):
            await at.worker.drain(0.1)
        assert (await at.now(job)).status is JobStatus.IN_QUEUE


async def test_unsaved_results_are_limited(
    engine_factory: EngineFactory, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator.runpod.local_worker, "_MAX_UNSAVED_JOBS", 3)
    async with working(engine_factory, script({"pieces": ["ok"]}, slots=2)) as at:
        await at.text((await at.enqueue("warm"))[0])
        jobs: list[Job] = []
        for number in range(10):
            # Each job is accepted while the disk has space, and its result comes while it is full.
            at.disk.full = False
            jobs += await at.enqueue(str(number))
            at.disk.full = True
        await asyncio.sleep(0.3)
        status = [(await at.now(job)).status for job in jobs]
        assert status.count(JobStatus.IN_PROGRESS) == 5
        at.disk.full = False
        assert [await at.text(job) for job in jobs] == ["ok"] * 10


async def test_cancel_that_cannot_be_written_leaves_the_job_running(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with on_a_slow_job(engine_factory, script) as (at, job):
        at.disk.full = True
        with pytest.raises(StoreUnavailable):
            await at.store.cancel(job.id)
        at.disk.full = False
        assert await at.text(job) == "ab"


async def test_stopped_job_that_has_not_ended_is_requeued(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with on_a_slow_job(engine_factory, script) as (at, job):
        (task,) = at.worker._running
        task.cancel()
        assert await at.text(job) == "ab"
        assert (await at.now(job)).attempt == 2


async def test_store_failure_is_logged_and_retried(
    engine_factory: EngineFactory,
    script: ScriptFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with working(engine_factory, script({"pieces": ["ok"]}, slots=1)) as at:
        receive, results = at.store.receive, iter([RuntimeError("a bug"), None])

        async def flaky(*args: Any, **named: Any) -> list[Job]:
            if (error := next(results, None)) is not None:
                raise error
            return await receive(*args, **named)

        monkeypatch.setattr(at.store, "receive", flaky)
        with caplog.at_level(logging.ERROR):
            assert await at.text((await at.enqueue("a"))[0]) == "ok"
        assert "could not take a job" in caplog.text
        await at.quiet()


# -- streams --------------------------------------------------------------------------------------


async def chunks_of(at: Worker, job: Job) -> list[Any]:
    return [orjson.loads(chunk.value) for chunk in await at.store.read_chunks(job.id, (0, 0), 0)]


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_job_that_asks_to_stream_is_streamed_in_either_mode(
    engine_factory: EngineFactory, script: ScriptFactory, mode: Literal["aggregate", "generator"]
) -> None:  # R59
    async with working(engine_factory, script(SLOW), mode=mode) as at:
        job = await at.send({"prompt": "slow", "sampling_params": {"stream": True}})
        output = orjson.loads((await at.ended(job)).output or b"")
        chunks = await chunks_of(at, job)
        assert [each["choices"][0]["text"] for each in chunks] == ["a", "b", "ab"]
        assert output == (chunks if mode == "generator" else chunks[-1])


async def test_job_that_does_not_ask_to_stream_is_streamed_only_in_generator_mode(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script(SLOW)) as at:
        (job,) = await at.enqueue("slow")
        assert await at.text(job) == "ab"
        assert await chunks_of(at, job) == []
    async with working(engine_factory, script(SLOW), mode="generator") as at:
        (job,) = await at.enqueue("slow")
        output = orjson.loads((await at.ended(job)).output or b"")
        assert await chunks_of(at, job) == output
        assert len(output) == 1


async def test_full_store_does_not_fail_a_job_with_a_json_output(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    path = script({"pieces": ["x" * 100], "repeat": 60, "delay_ms": 1}, context_length=10**6)
    limits = Limits(max_stream_bytes=4_000)
    async with working(engine_factory, path, limits=limits) as at:
        job = await at.send({"prompt": "x", "stream": True})
        output = orjson.loads((await at.ended(job)).output or b"")
        assert output["choices"][0]["text"] == "x" * 6_000
        [warning] = output["warnings"]
        assert warning.startswith("the rest of the answer was not streamed: a job may stream 4,000")
        chunks = await chunks_of(at, job)
        assert 1 <= len(chunks) < 60
    async with working(engine_factory, path, limits=limits, mode="generator") as at:
        job = await at.send({"prompt": "x", "stream": True})
        assert (await at.ended(job)).status is JobStatus.FAILED


async def test_cancelled_stream_keeps_its_earlier_chunks(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({"pieces": ["a", HANG]}, slots=1)) as at:
        job = await at.send({"prompt": "x", "stream": True})
        async with asyncio.timeout(DEADLINE_S):
            await at.store.read_chunks(job.id, (0, 0), 3600)
        await at.store.cancel(job.id)
        await at.quiet()
        assert [each["choices"][0]["text"] for each in await chunks_of(at, job)] == ["a"]
        assert (await at.now(job)).status is JobStatus.CANCELLED
