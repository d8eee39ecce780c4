"""The in-process worker: how many jobs at a time, when, and what becomes of failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from emulator.local_worker import LocalWorker
from engine import BackendConfig, Engine
from engine.hooks import EngineEvent, Hook, HostLoaded, RequestEnded, RequestStarted
from handler.job import JobHandler
from handler.pipeline import Pipeline
from jobs import Job, JobStatus, MemoryJobStore
from tests.conftest import EngineFactory, ScriptFactory
from tests.unit.emulator.events import DEADLINE_S, Events

HANG = {"hang_s": 3600}


class Worker:
    """A worker, its store and its engine."""

    def __init__(self, engine: Engine, events: Events) -> None:
        self.engine = engine
        self.events = events
        self.store = MemoryJobStore()
        jobs = JobHandler(Pipeline(engine, "scripted"))
        self.worker = LocalWorker(self.store, jobs, engine)
        self.at_load: list[dict[JobStatus, int]] = []

    def on_event(self, event: EngineEvent) -> None:
        if isinstance(event, HostLoaded):
            counts = self.store.counts()
            self.at_load.append({status: count for status, count in counts.items() if count})

    async def enqueue(self, *prompts: str) -> list[Job]:
        return [await self.store.enqueue({"prompt": prompt}) for prompt in prompts]

    async def ended(self, job: Job) -> Job:
        async with asyncio.timeout(DEADLINE_S):
            ended = await self.store.wait(job.id, 3600)
        assert ended.status.final
        return ended

    def abort(self, job: Job) -> None:
        for stream in list(self.engine._streams):
            if stream.request.request_id == job.id:
                stream.abort()


@asynccontextmanager
async def working(engine_factory: EngineFactory, script: Path) -> AsyncIterator[Worker]:
    config = BackendConfig("scripted", {"model_path": str(script)})
    events = Events()
    hooks: list[Hook] = [events, lambda event: found.on_event(event)]
    found: Worker = Worker(
        engine_factory(config, hooks, isolation="thread", abort_grace_s=2), events
    )
    found.worker.start()
    try:
        yield found
    finally:
        await found.worker.close()


async def test_jobs_are_answered(engine_factory: EngineFactory, script: ScriptFactory) -> None:
    async with working(engine_factory, script({"pieces": ["yes", " sir"]})) as at:
        jobs = await at.enqueue(*"abcdefgh")
        for job in jobs:
            output: Any = (await at.ended(job)).output
            assert output["choices"][0]["text"] == "yes sir"
            assert output["id"] == job.id


async def test_bad_job_fails_and_the_next_is_served(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:  # R50
    pieces = [{"error": "no such luck"}]
    async with working(
        engine_factory, script({"when": "bad", "pieces": pieces}, {"pieces": ["ok"]}, slots=1)
    ) as at:
        empty = await at.store.enqueue({"nothing": "of use"})
        bad, good = await at.enqueue("bad", "good")
        assert (await at.ended(empty)).error == "input.prompt must be a non-empty string, got none"
        assert (await at.ended(bad)).error == "no such luck"
        assert (await at.ended(good)).status == JobStatus.COMPLETED


async def test_as_many_jobs_run_as_there_are_slots(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({"pieces": ["a", HANG]}, slots=3)) as at:
        jobs = await at.enqueue(*"abcde")
        await at.events.wait(RequestStarted, 3)
        counts = at.store.counts()
        assert (counts[JobStatus.IN_PROGRESS], counts[JobStatus.IN_QUEUE]) == (3, 2)
        at.abort(jobs[1])
        assert (await at.ended(jobs[1])).error == "the request was cancelled"
        started = await at.events.wait(RequestStarted, 4)
        assert [event.request_id for event in started] == [job.id for job in jobs[:4]]
        assert at.store.counts()[JobStatus.IN_QUEUE] == 1


async def test_no_job_is_taken_before_the_model_is_loaded(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({"pieces": ["ok"]}, load_ms=300)) as at:
        job = (await at.enqueue("early"))[0]
        await at.events.wait(HostLoaded)
        assert at.at_load == [{JobStatus.IN_QUEUE: 1}]
        ended = await at.ended(job)
        assert ended.delay_ms is not None
        assert ended.delay_ms >= 250
        assert ended.execution_ms is not None
        assert ended.execution_ms < ended.delay_ms


async def test_each_job_fails_with_the_reason_when_the_model_cannot_be_loaded(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({}, load_error="the file is broken")) as at:
        for job in await at.enqueue("a", "b", "c", "d", "e", "f"):
            ended = await at.ended(job)
            assert (ended.status, ended.error) == (JobStatus.FAILED, "the file is broken")


async def test_close_stops_what_runs_and_takes_nothing_more(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({"pieces": ["a", HANG]}, slots=1)) as at:
        running, waiting = await at.enqueue("a", "b")
        await at.events.wait(RequestStarted)
        async with asyncio.timeout(DEADLINE_S):
            await at.worker.close()
        await at.events.wait(RequestEnded)
        assert at.engine.running == 0
        for job, status in ((running, JobStatus.IN_PROGRESS), (waiting, JobStatus.IN_QUEUE)):
            now = await at.store.get(job.id)
            assert now is not None
            assert now.status == status


async def test_close_before_the_model_is_loaded(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    async with working(engine_factory, script({}, load_ms=200)) as at:
        await at.enqueue("a")
        async with asyncio.timeout(DEADLINE_S):
            await at.worker.close()
