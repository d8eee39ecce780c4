"""Start the only module that imports the SDK, and inspect what the SDK receives."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine import BackendConfig, EngineState
from handler.worker.sdk_cpuinfo_patch import patch_cpuinfo
from tests.conftest import EngineFactory, ScriptFactory
from tests.unit.handler.conftest import JobHandlerFactory
from tests.waiting import wait_until

ROOT = Path(__file__).parents[4]


@pytest.fixture
def worker() -> ModuleType:
    """Imported for these tests alone, since the SDK takes seconds."""
    patch_cpuinfo()
    from handler.worker import runpod_worker

    return runpod_worker


def test_nothing_else_needs_the_sdk_nor_the_client_of_buckets_at_the_start() -> None:
    program = (
        "import sys, handler.__main__, handler.job.job_handler, handler.worker.local, "
        "handler.apis.openai.service; "
        "sys.exit(bool(sys.modules.keys() & {'runpod', 'boto3', 'botocore'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=30, check=False)
    assert done.returncode == 0


async def test_sdk_sees_a_plain_function_and_a_generator(
    worker: ModuleType, job_handler_of: JobHandlerFactory
) -> None:
    # It looks at the function alone: a plain one that returns a generator would hang its job.
    from runpod.serverless.modules.rp_handler import is_generator

    jobs = job_handler_of()
    assert is_generator(worker.make_generator_handler(jobs, None, None, lambda kept: None))
    assert not is_generator(worker.make_handler(jobs, None, None))


async def test_generator_reports_a_dead_engine_without_a_key_of_the_platforms(
    worker: ModuleType, job_handler_of: JobHandlerFactory
) -> None:
    # The SDK ignores refresh_worker in yielded outputs, and would post it to the client.
    jobs = job_handler_of(load_error="no NPU")
    handler = worker.make_generator_handler(jobs, None, None, lambda kept: None)
    outputs = [output async for output in handler({"id": "j", "input": {"prompt": "x"}})]
    assert outputs == [{"error": "no NPU"}]


async def test_watch_loads_the_model_when_no_fitness_check_has_waited_for_it(
    worker: ModuleType, engine_factory: EngineFactory, script: ScriptFactory
) -> None:  # R69
    engine = engine_factory(BackendConfig.from_wire("scripted", {"model_path": str(script({}))}))
    engine.spawn()
    tasks = asyncio.all_tasks()
    worker.DeadEngineExit(engine).watch()
    (watching,) = asyncio.all_tasks() - tasks
    try:
        await wait_until(lambda: engine.state is EngineState.READY)
    finally:
        # It would end this process when the engine is closed.
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def test_model_check_is_left_out_when_the_sdk_has_no_fitness_checks(
    worker: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[Any] = []
    serverless = worker.runpod.serverless
    monkeypatch.setattr(serverless, "register_fitness_check", checks.append)
    worker.register_model_check(None)
    assert len(checks) == 1
    monkeypatch.delattr(serverless, "register_fitness_check")
    worker.register_model_check(None)
    assert len(checks) == 1


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_job_of_a_dead_engine_is_held_until_the_worker_ends(
    worker: ModuleType, job_handler_of: JobHandlerFactory, mode: str
) -> None:
    held = asyncio.Event()

    class End:
        async def hold(self) -> None:
            held.set()
            await asyncio.Event().wait()

    jobs, job = job_handler_of(load_error="no NPU"), {"id": "j", "input": {"prompt": "x"}}
    if mode == "aggregate":
        answering = worker.make_handler(jobs, None, End())(job)
    else:
        outputs = worker.make_generator_handler(jobs, None, End(), lambda kept: None)(job)
        answering = anext(outputs)
    task = asyncio.ensure_future(answering)
    async with asyncio.timeout(30):
        await held.wait()
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_generator_closes_what_it_reads(worker: ModuleType) -> None:
    # R31
    closed = []

    class Jobs:
        async def stream(
            self, job: Mapping[str, Any], slot: None, **options: Any
        ) -> AsyncGenerator[Any, None]:
            try:
                yield "one"
                yield "two"
            finally:
                closed.append(job["id"])

    outputs = worker.make_generator_handler(Jobs(), None, None, lambda kept: None)({"id": "j"})
    assert await anext(outputs) == "one"
    await outputs.aclose()
    assert closed == ["j"]
