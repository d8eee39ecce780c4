"""Explains in one sentence why the stream of an ended job has no output."""

from __future__ import annotations

import orjson

from emulator.runpod.job_response import worker_name
from handler.input.request import asks_to_stream
from jobs import Job, JobStatus

_ENDINGS = {
    JobStatus.FAILED: "the job failed",
    JobStatus.CANCELLED: "the job was cancelled",
    JobStatus.TIMED_OUT: "the job took too long",
}


def explain_end(job: Job, chunk_count: int, local_worker: str) -> str | None:
    """Return why an ended job has no output to stream; None if it streamed and completed.

    `chunk_count` counts the chunks of the job's last attempt. `local_worker` is the key of the
    worker in this process. Its jobs stream if their input asks for it; whether jobs of other
    workers stream depends on the worker's handler.
    """
    if job.status in _ENDINGS:
        return _explain_failure(job, chunk_count)
    if chunk_count:
        return None
    if job.worker_id != local_worker:
        name = worker_name(job.worker_id or "")
        return (
            f"worker {name} returned its output without streaming: its handler is not a generator, "
            "or it yielded nothing; the output is in /status"
        )
    if asks_to_stream(orjson.loads(job.input)):
        return "nothing of this job could be kept for /stream; the output is in /status"
    return (
        "the job did not ask to stream: set input.sampling_params.stream to true; "
        "the output is in /status"
    )


def explain_drained(chunk_count: int) -> str:
    """Return why a client gets no chunk of a job that has streamed all of them."""
    if chunk_count == 1:
        chunks = "the only chunk of this job was"
    else:
        chunks = f"all {chunk_count:,} chunks of this job were"
    return (
        f"{chunks} returned by earlier requests; with Accept: text/event-stream they are sent again"
    )


def explain_empty_output(chunk_count: int) -> str | None:
    """Return why the output of a job is an empty list although it has streamed; None if not so.

    The SDK reports the end of a generator so, unless its handler asks for the chunks.
    """
    if not chunk_count:
        return None
    chunks = "1 chunk was" if chunk_count == 1 else f"{chunk_count:,} chunks were"
    return (
        f"{chunks} streamed, and /stream has them; for an output that has them too, set "
        '"return_aggregate_stream": True in runpod.serverless.start'
    )


def _explain_failure(job: Job, chunk_count: int) -> str:
    if chunk_count:
        moment = f"after {chunk_count:,} chunk{'s' if chunk_count > 1 else ''}"
    elif job.started_at is None:
        moment = "before a worker took it"
    else:
        moment = "before it streamed anything"
    summary = f"{_ENDINGS[job.status]} {moment}"
    # A worker may report a traceback as its error; the first line of that is a sentence.
    reason = (job.error or "").partition("\n")[0].strip()
    return f"{summary}: {reason}" if reason else summary
