"""The one file that knows the SDK: which way it runs, and what the SDK sees in its handlers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from handler.processor import tell_sdk
from tests.unit.handler.conftest import JobHandlerFactory

ROOT = Path(__file__).parents[3]


@pytest.fixture
def worker() -> ModuleType:
    """Imported for these tests alone, since the SDK takes seconds."""
    tell_sdk()
    from handler import worker

    return worker


def test_nothing_else_needs_the_sdk_nor_the_client_of_buckets_at_the_start() -> None:
    program = (
        "import sys, handler.__main__, handler.job, handler.local, handler.openai.service; "
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
    assert is_generator(worker.make_generator_handler(jobs, lambda: None, lambda kept: None))
    assert not is_generator(worker.make_handler(jobs))


async def test_generator_tells_of_a_dead_engine_aside(
    worker: ModuleType, job_handler_of: JobHandlerFactory
) -> None:
    # The SDK ignores refresh_worker in what is yielded, and would post it to the client.
    told = []
    handler = worker.make_generator_handler(
        job_handler_of(load_error="no NPU"), lambda: told.append(True), lambda kept: None
    )
    outputs = [output async for output in handler({"id": "j", "input": {"prompt": "x"}})]
    assert outputs == [{"error": "no NPU"}]
    assert told == [True]


async def test_generator_closes_what_it_reads(worker: ModuleType) -> None:
    # R31
    closed = []

    class Jobs:
        async def stream(
            self, job: Mapping[str, Any], *, keep: Callable[[bool], None]
        ) -> AsyncGenerator[Any, None]:
            try:
                yield "one"
                yield "two"
            finally:
                closed.append(job["id"])

    outputs = worker.make_generator_handler(Jobs(), lambda: None, lambda kept: None)({"id": "j"})
    assert await anext(outputs) == "one"
    await outputs.aclose()
    assert closed == ["j"]
