"""The sentence of a stream that ends without output."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from emulator.runpod.stream_end import explain_drained, explain_end
from jobs import Job, JobStatus

LOCAL, REMOTE = "e/local", "e/pod-1"
ASKS = {"prompt": "x", "sampling_params": {"stream": True}}


def ended(status: JobStatus, job_input: Any = None, worker: str = LOCAL, **fields: Any) -> Job:
    fields = {"worker_id": worker, "started_at": 1.0, **fields}
    return Job(
        id="j", endpoint="e", input=orjson.dumps(job_input), created_at=0, status=status, **fields
    )


def test_job_that_streamed_and_completed_needs_no_explanation() -> None:
    for worker in (LOCAL, REMOTE):
        assert explain_end(ended(JobStatus.COMPLETED, ASKS, worker), 3, LOCAL) is None


@pytest.mark.parametrize(
    "job_input",
    [
        {"prompt": "x"},
        {"prompt": "x", "sampling_params": {"stream": False}, "stream": None},
        {"openai_route": "/v1/completions", "openai_input": {"prompt": "x"}},
        "text",
    ],
)
def test_explanation_names_the_parameter_when_the_job_did_not_ask_to_stream(job_input: Any) -> None:
    message = explain_end(ended(JobStatus.COMPLETED, job_input), 0, LOCAL)
    assert message == (
        "the job did not ask to stream: set input.sampling_params.stream to true; "
        "the output is in /status"
    )


@pytest.mark.parametrize(
    "job_input",
    [
        ASKS,
        {"prompt": "x", "stream": True},
        {"openai_route": "/v1/completions", "openai_input": {"stream": True}},
    ],
)
def test_explanation_differs_when_the_job_requested_a_stream(job_input: Any) -> None:
    message = explain_end(ended(JobStatus.COMPLETED, job_input), 0, LOCAL)
    assert message == "nothing of this job could be kept for /stream; the output is in /status"


def test_worker_whose_handler_is_not_a_generator_is_named() -> None:
    message = explain_end(ended(JobStatus.COMPLETED, ASKS, REMOTE), 0, LOCAL)
    assert message == (
        "worker pod-1 returned its output without streaming: its handler is not a generator, "
        "or it yielded nothing; the output is in /status"
    )


@pytest.mark.parametrize(
    ("job", "chunk_count", "message"),
    [
        (
            ended(JobStatus.FAILED, error="out of memory\ntraceback: …"),
            0,
            "the job failed before it streamed anything: out of memory",
        ),
        (ended(JobStatus.FAILED, error="no"), 1, "the job failed after 1 chunk: no"),
        (ended(JobStatus.FAILED), 2, "the job failed after 2 chunks"),
        (
            ended(JobStatus.CANCELLED, worker_id=None, started_at=None),
            0,
            "the job was cancelled before a worker took it",
        ),
        (ended(JobStatus.CANCELLED), 12, "the job was cancelled after 12 chunks"),
        (
            ended(JobStatus.TIMED_OUT, error="the job ran for more than 5 s (executionTimeout)"),
            3,
            "the job took too long after 3 chunks: "
            "the job ran for more than 5 s (executionTimeout)",
        ),
    ],
)
def test_failed_job_is_explained_with_moment_and_reason(
    job: Job, chunk_count: int, message: str
) -> None:
    assert explain_end(job, chunk_count, LOCAL) == message


def test_drained_chunks_are_counted() -> None:
    assert explain_drained(1).startswith("the only chunk of this job was returned by earlier")
    assert explain_drained(1_200).startswith("all 1,200 chunks of this job were returned")
