"""Encode a job's output once for workers without the SDK, equal to the SDK's output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from engine import BackendConfig
from handler.delivery import limits
from handler.delivery.results import ResultUploader
from handler.errors import ResultTooLarge
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline
from tests.conftest import EngineFactory, ScriptFactory

JOBS: list[Any] = [
    {"prompt": "hello"},
    {"prompt": "hello", "stream": True},
    {"prompt": "fail", "stream": True},
    {"prompt": ""},
    {"openai_route": "/v1/completions", "openai_input": {"prompt": "hello", "stream": True}},
    {"openai_route": "/v1/completions", "openai_input": {"prompt": "hello"}},
    {"openai_route": "/v1/completions", "openai_input": {"prompt": 7}},
    {"openai_route": "/v1/models"},
    {"openai_route": "/v1/nothing"},
    "text",
]
FAIL = {"when": "fail", "pieces": ["so", {"error": "no more"}]}


def handler(
    engine_factory: EngineFactory, script: Path, results: ResultUploader | None = None
) -> JobHandler:
    config = BackendConfig.from_wire("scripted", {"model_path": str(script)})
    engine = engine_factory(config, isolation="thread")
    return JobHandler(Pipeline(engine, "scripted"), interval_s=0, results=results)


def without_timings(output: Any) -> Any:
    """Leave out what differs from run to run."""
    if isinstance(output, dict):
        return {
            key: without_timings(value)
            for key, value in output.items()
            if key not in ("timings", "id", "created")
        }
    if isinstance(output, list):
        return [without_timings(each) for each in output]
    return output if not isinstance(output, str) or "data: " not in output else output.count("data")


@pytest.mark.parametrize("job_input", JOBS, ids=str)
async def test_encoded_output_equals_the_sdk_output(
    engine_factory: EngineFactory, script: ScriptFactory, job_input: Any
) -> None:
    # One piece: how several are cut into events depends on the moment.
    jobs = handler(engine_factory, script(FAIL, {"pieces": ["yes sir ü"]}))
    job = {"id": "j", "input": job_input}
    output, result = await jobs.run(job), await jobs.run_encoded(job)
    if isinstance(output, dict) and isinstance(output.get("error"), str):
        assert (result.output, result.error) == (None, output["error"])
    else:
        assert result.error is None
        assert without_timings(orjson.loads(result.output or b"")) == without_timings(output)


@pytest.mark.parametrize("job_input", JOBS, ids=str)
async def test_streamed_outputs_are_those_of_the_sdk(
    engine_factory: EngineFactory, script: ScriptFactory, job_input: Any
) -> None:
    jobs = handler(engine_factory, script(FAIL, {"pieces": ["yes", {"text": "!", "delay_ms": 20}]}))
    job = {"id": "j", "input": job_input}
    outputs = [each async for each in jobs.stream(job)]
    chunks: list[bytes] = []

    async def send_chunk(chunk: bytes) -> None:
        chunks.append(chunk)

    result = await jobs.run_encoded(job, send_chunk=send_chunk, as_list=True)
    if isinstance(outputs[-1], dict) and isinstance(outputs[-1].get("error"), str):
        assert (result.output, result.error) == (None, outputs.pop()["error"])
    else:
        assert orjson.loads(result.output or b"") == [orjson.loads(chunk) for chunk in chunks]
    assert without_timings([orjson.loads(chunk) for chunk in chunks]) == without_timings(outputs)


async def test_result_that_is_too_large_is_an_error(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    sizes = limits.PayloadLimits(run_bytes=900)
    jobs = handler(engine_factory, script({"pieces": ["x" * 1_000]}), ResultUploader(limits=sizes))
    job = {"id": "j", "input": {"prompt": "x"}}

    async def send_chunk(chunk: bytes) -> None:
        raise AssertionError

    assert "lower max_tokens" in ((await jobs.run_encoded(job)).error or "")
    assert "lower max_tokens" in (
        (await jobs.run_encoded(job, send_chunk=send_chunk, as_list=True)).error or ""
    )
    # A /runsync allows a larger result.
    assert (await jobs.run_encoded(job | {"id": "sync-j"})).error is None


async def test_error_of_send_chunk_ends_the_job_and_its_generation(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    jobs = handler(engine_factory, script({"pieces": ["a"], "repeat": -1, "delay_ms": 5}))
    sent: list[bytes] = []

    async def send_chunk(chunk: bytes) -> None:
        sent.append(chunk)
        raise ResultTooLarge("no more room")

    job = {"id": "j", "input": {"prompt": "x", "stream": True}}
    result = await jobs.run_encoded(job, send_chunk=send_chunk, as_list=True)
    assert (result.error, len(sent)) == ("no more room", 1)
