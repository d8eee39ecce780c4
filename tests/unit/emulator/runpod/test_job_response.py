"""Jobs as RunPod shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from emulator.runpod import job_response
from jobs import Chunk, Job, JobStatus

WAITING = Job(id="j-u1", endpoint="e", input=b'{"a":1}', created_at=9.0, queued_at=10.0)
RUNNING = replace(
    WAITING, status=JobStatus.IN_PROGRESS, attempt=1, started_at=10.5, worker_id="e/w-1"
)
ENDED = replace(RUNNING, ended_at=11.0)
TIMES = {"delayTime": 500, "executionTime": 500, "workerId": "w-1"}


def wire(response: dict[str, Any]) -> dict[str, Any]:
    decoded: dict[str, Any] = orjson.loads(orjson.dumps(response))
    return decoded


def test_waiting_job_has_no_times() -> None:
    status = wire(job_response.build_status(WAITING))
    assert status == job_response.build_accepted(WAITING) == {"id": "j-u1", "status": "IN_QUEUE"}


def test_running_job_has_delay_worker_and_progress() -> None:
    expected = {"id": "j-u1", "status": "IN_PROGRESS", "delayTime": 500, "workerId": "w-1"}
    assert wire(job_response.build_status(RUNNING)) == expected
    half = replace(RUNNING, progress=b'"half"')
    assert wire(job_response.build_status(half)) == expected | {"output": "half"}


@pytest.mark.parametrize("output", [{"a": 1}, [1], "text", None, 0, False, []])
def test_completed_job_has_its_output_of_any_type(output: Any) -> None:
    job = replace(
        ENDED, status=JobStatus.COMPLETED, output=orjson.dumps(output), progress=b'"half"'
    )
    assert wire(job_response.build_status(job)) == {
        "id": "j-u1",
        "status": "COMPLETED",
        "output": output,
        **TIMES,
    }


def test_completed_job_without_an_output_has_null() -> None:
    assert (
        wire(job_response.build_status(replace(ENDED, status=JobStatus.COMPLETED)))["output"]
        is None
    )


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.TIMED_OUT])
def test_failed_job_has_one_error_string_and_no_output(status: JobStatus) -> None:  # R50
    job = replace(ENDED, status=status, error="it broke", progress=b'"half"')
    assert wire(job_response.build_status(job)) == {
        "id": "j-u1",
        "status": status.value,
        "error": "it broke",
        **TIMES,
    }


def test_job_cancelled_in_the_queue_has_no_worker_and_no_times() -> None:
    job = replace(WAITING, status=JobStatus.CANCELLED, ended_at=11.0)
    assert wire(job_response.build_status(job)) == {"id": "j-u1", "status": "CANCELLED"}


def test_request_has_input_and_webhook() -> None:
    job = replace(ENDED, status=JobStatus.COMPLETED, output=b"2", webhook="http://here/")
    assert wire(job_response.build_request(job)) == wire(job_response.build_status(job)) | {
        "input": {"a": 1},
        "webhook": "http://here/",
    }
    assert "webhook" not in job_response.build_request(ENDED)


def test_worker_job_has_id_input_and_extra_keys() -> None:
    assert wire(job_response.build_worker_job(WAITING)) == {"id": "j-u1", "input": {"a": 1}}
    more = replace(WAITING, extra=b'{"webhook":"http://here/"}', webhook="http://here/")
    assert wire(job_response.build_worker_job(more)) == {
        "id": "j-u1",
        "input": {"a": 1},
        "webhook": "http://here/",
    }


def test_stream_has_both_keys_when_no_chunk_is_new() -> None:
    chunks = [Chunk(1, 1, b'"a"'), Chunk(1, 2, b'{"b":null}')]
    assert wire(job_response.build_stream(RUNNING, chunks)) == {
        "status": "IN_PROGRESS",
        "stream": [{"output": "a"}, {"output": {"b": None}}],
    }
    assert wire(job_response.build_stream(RUNNING, ())) == {"status": "IN_PROGRESS", "stream": []}


def test_worker_key_has_the_endpoint_and_worker_name_has_not() -> None:
    assert job_response.worker_name(job_response.worker_key("e", "w/1")) == "w/1"
    assert job_response.worker_key("a", "w") != job_response.worker_key("b", "w")
    assert job_response.worker_name("bare") == "bare"
