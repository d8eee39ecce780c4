"""The chunks of a job that asks to stream while its output is one JSON (STREAM_MODE=aggregate)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from handler.delivery import limits
from handler.delivery.results import ResultUploader
from handler.errors import ResultTooLarge
from handler.input.options import OptionsInput, OptionsReader
from handler.job.job_handler import JobHandler
from handler.job.job_result import JobResult
from tests.conftest import SMALL_RULES
from tests.file_blobs import FileBlobs
from tests.unit.handler.conftest import (
    ExclamationValidator,
    JobHandlerFactory,
    PipelineFactory,
    RecordingGenerate,
)
from tests.unit.handler.generation.test_regeneration import CountingValidator
from validation.rules_validator import RulesValidator

SLOW = {"pieces": ["one ", {"text": "two ", "delay_ms": 30}, {"text": "three", "delay_ms": 30}]}
CALL = {"openai_route": "/v1/completions", "openai_input": {"prompt": "hi", "stream": True}}
S3_CONFIG = {
    "accessId": "AKIDEXAMPLE",
    "accessSecret": "Zm9v/s3cr3t",
    "bucketName": "theirs",
    "endpointUrl": "http://127.0.0.1:9",
}


def prompt(**job_input: Any) -> dict[str, Any]:
    return {"prompt": "hi", "stream": True, **job_input}


async def streamed(
    jobs: JobHandler, job_input: Any, *, as_list: bool = False, **fields: Any
) -> tuple[list[Any], Any]:
    """Run a job; return its chunks and its output."""
    chunks: list[Any] = []

    async def send_chunk(chunk: bytes) -> None:
        chunks.append(orjson.loads(chunk))

    job = {"id": "j", "input": job_input, **fields}
    return chunks, output_of(await jobs.run_encoded(job, send_chunk=send_chunk, as_list=as_list))


def output_of(result: JobResult) -> Any:
    assert result.error is None
    return orjson.loads(result.output or b"")


def text_of(output: Any) -> str:
    text: str = output["choices"][0]["text"]
    return text


def without_times(output: Any) -> Any:
    return {name: value for name, value in output.items() if name not in ("timings", "id")}


async def test_partial_chunks_precede_the_complete_output(
    job_handler_of: JobHandlerFactory,
) -> None:  # R45, R59
    jobs = job_handler_of(SLOW, interval_s=0.0)
    chunks, output = await streamed(jobs, prompt())
    *partial, last = chunks
    assert len(partial) == 3
    assert [each["streaming"] for each in partial] == [True] * 3
    assert "".join(map(text_of, partial)) == text_of(output) == "one two three"
    assert last == output
    complete = await jobs.run({"id": "j", "input": prompt()})
    assert without_times(output) == without_times(complete)


@pytest.mark.parametrize("job_input", [prompt(), CALL], ids=["text", "openai"])
async def test_both_modes_stream_the_same_sequence(
    job_handler_of: JobHandlerFactory, job_input: Any
) -> None:
    jobs = job_handler_of({"pieces": ["yes sir"]}, interval_s=0.0)
    aggregate, _ = await streamed(jobs, job_input)
    generator, output = await streamed(jobs, job_input, as_list=True)
    assert generator == output
    if job_input is CALL:
        assert [each.count("data: ") for each in aggregate] == [
            each.count("data: ") for each in generator
        ]
    else:
        assert [*map(without_times, aggregate)] == [*map(without_times, generator)]


async def test_output_of_an_openai_call_is_the_text_of_its_chunks(
    job_handler_of: JobHandlerFactory,
) -> None:
    chunks, output = await streamed(job_handler_of(SLOW, interval_s=0.0), CALL)
    assert len(chunks) >= 3
    assert "".join(chunks) == output
    assert output.endswith("data: [DONE]\n\n")


async def test_job_that_does_not_ask_to_stream_has_no_chunks(
    job_handler_of: JobHandlerFactory,
) -> None:
    jobs = job_handler_of(SLOW, interval_s=0.0)
    for job_input in (prompt(stream=False), CALL | {"openai_input": {"prompt": "hi"}}):
        chunks, output = await streamed(jobs, job_input)
        assert chunks == []
        assert text_of(output) == "one two three"


async def test_call_that_cannot_be_streamed_has_its_body_as_the_only_chunk(
    job_handler_of: JobHandlerFactory,
) -> None:
    job_input = {"openai_route": "/v1/models", "openai_input": {"stream": True}}
    chunks, output = await streamed(job_handler_of(SLOW), job_input)
    assert chunks == [output]
    assert output["object"] == "list"


async def test_failure_after_some_chunks_fails_the_job(job_handler_of: JobHandlerFactory) -> None:
    broken = {"pieces": ["one ", {"text": "two", "delay_ms": 30}, {"error": "out of memory"}]}
    chunks: list[bytes] = []

    async def send_chunk(chunk: bytes) -> None:
        chunks.append(chunk)

    jobs = job_handler_of(broken, interval_s=0.0)
    result = await jobs.run_encoded({"id": "j", "input": prompt()}, send_chunk=send_chunk)
    assert (result.output, result.error) == (None, "out of memory")
    assert [text_of(orjson.loads(chunk)) for chunk in chunks] == ["one ", "two"]


async def test_blocked_request_streams_only_its_final_json(pipeline_of: PipelineFactory) -> None:
    # R56
    validator = RulesValidator.from_file(SMALL_RULES)
    options = OptionsReader(OptionsInput(blocked_terms=["attack plan"]), validator.intents)
    jobs = JobHandler(pipeline_of(SLOW, validator=validator), options, interval_s=0.0)
    chunks, output = await streamed(jobs, prompt(prompt="an attack plan"))
    assert chunks == [output]
    assert output["blocked"] is True


async def test_redacted_answer_is_streamed_at_its_end(pipeline_of: PipelineFactory) -> None:
    pieces = ["Write to jo", {"text": "@exam", "delay_ms": 30}, {"text": "ple.com.", "delay_ms": 9}]
    pipeline = pipeline_of({"pieces": pieces}, validator=ExclamationValidator())
    jobs = JobHandler(pipeline, OptionsReader(OptionsInput(redact_pii=True)), interval_s=0.0)
    chunks, output = await streamed(jobs, prompt())
    partial, last = chunks
    assert text_of(partial) == text_of(last) == text_of(output) == "Write to [email]."
    assert output["redacted"] == {"email": 1}


async def test_regenerated_answer_is_streamed_after_it_is_chosen(
    pipeline_of: PipelineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [
        {"when": "try 1$", "pieces": ["He", "llo!"]},
        {"when": "try 2$", "pieces": ["He", "llo"]},
    ]
    pipeline = pipeline_of(*answers, validator=CountingValidator())
    monkeypatch.setattr(pipeline.engine, "generate", RecordingGenerate(pipeline.engine))
    jobs = JobHandler(pipeline, OptionsReader(OptionsInput(regenerate=True)), interval_s=0.0)
    chunks, output = await streamed(jobs, prompt())
    partial, last = chunks
    assert text_of(partial) == text_of(last) == text_of(output) == "Hello"
    assert "regenerated" in output


# -- sizes and buckets ----------------------------------------------------------------------------


def handler_with_chunk_limit(
    pipeline_of: PipelineFactory, chunk_bytes: int, *pieces: Any
) -> JobHandler:
    """Return a job handler whose chunks may have so many bytes."""
    results = ResultUploader(
        limits=limits.PayloadLimits(chunk_bytes=chunk_bytes, platform="this server")
    )
    return JobHandler(pipeline_of({"pieces": [*pieces]}), interval_s=0.0, results=results)


async def test_last_chunk_that_is_too_large_goes_without_what_repeats_its_text(
    pipeline_of: PipelineFactory,
) -> None:
    jobs = handler_with_chunk_limit(pipeline_of, 4_000, *["x" * 100] * 15)
    chunks, output = await streamed(jobs, prompt())
    *partial, last = chunks
    assert "".join(map(text_of, partial)) == text_of(output) == text_of(last) == "x" * 1_500
    assert last["choices"][0].keys().isdisjoint({"deltas", "tokens"})
    [warning] = last["warnings"]
    assert warning.startswith("deltas and tokens were left out")
    # The output has them.
    assert "".join(output["choices"][0]["deltas"]) == "x" * 1_500
    assert "warnings" not in output


async def test_last_chunk_that_is_still_too_large_goes_without_its_text(
    pipeline_of: PipelineFactory,
) -> None:
    jobs = handler_with_chunk_limit(pipeline_of, 2_000, "x" * 1_000, "y" * 1_000, "z" * 1_000)
    chunks, output = await streamed(jobs, prompt())
    *partial, last = chunks
    assert "".join(map(text_of, partial)) == text_of(output)
    assert "text" not in last["choices"][0]
    assert last["usage"] == output["usage"]
    assert "/status has it" in last["warnings"][-1]
    assert max(len(orjson.dumps(chunk)) for chunk in chunks) <= 2_000


async def test_openai_events_fit_a_small_chunk(pipeline_of: PipelineFactory) -> None:
    jobs = handler_with_chunk_limit(pipeline_of, 2_000, "x" * 1_000, "y" * 1_000)
    chunks, output = await streamed(jobs, CALL)
    assert "".join(chunks) == output
    texts = [
        text_of(orjson.loads(line[6:]))
        for line in output.split("\n")
        if line.startswith("data: {") and '"choices":[]' not in line
    ]
    assert "".join(texts) == "x" * 1_000 + "y" * 1_000


async def test_chunk_that_cannot_be_kept_ends_the_stream_and_not_the_job(
    job_handler_of: JobHandlerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    chunks: list[bytes] = []

    async def send_chunk(chunk: bytes) -> None:
        if chunks:
            raise ResultTooLarge("the store is full")
        chunks.append(chunk)

    jobs = job_handler_of(SLOW, interval_s=0.0)
    output = output_of(
        await jobs.run_encoded({"id": "j", "input": prompt()}, send_chunk=send_chunk)
    )
    assert text_of(output) == "one two three"
    assert output["warnings"] == ["the rest of the answer was not streamed: the store is full"]
    assert len(chunks) == 1
    assert "the rest of the answer was not streamed" in caplog.text


async def test_openai_call_whose_events_cannot_be_kept_fails(
    job_handler_of: JobHandlerFactory,
) -> None:
    async def send_chunk(chunk: bytes) -> None:
        raise ResultTooLarge("the store is full")

    result = await job_handler_of(SLOW).run_encoded(
        {"id": "j", "input": CALL}, send_chunk=send_chunk
    )
    assert result.output is None
    assert orjson.loads(result.error or "")["error"]["message"] == "the store is full"


async def test_result_in_a_bucket_is_streamed_before_the_pointer_to_it(
    pipeline_of: PipelineFactory, tmp_path: Path
) -> None:
    results = ResultUploader(open_bucket=lambda bucket: FileBlobs(tmp_path / bucket.name))
    jobs = JobHandler(pipeline_of(SLOW), interval_s=0.0, results=results)
    chunks, output = await streamed(jobs, prompt(), s3Config=S3_CONFIG)
    *partial, complete, pointer = chunks
    assert pointer == output
    assert output["result"]["bucket"] == "theirs"
    stored = orjson.loads((tmp_path / "theirs" / output["result"]["key"]).read_bytes())
    assert stored == complete
    assert "".join(map(text_of, partial)) == text_of(complete)
