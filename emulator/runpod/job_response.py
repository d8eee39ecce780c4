"""Builds RunPod's JSON representations of a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from emulator.runpod.webhook_loops import DEPTH_KEY
from jobs import Chunk, Job, JobStatus


def build_accepted(job: Job) -> dict[str, Any]:
    """Return the response to `/run`: the job's id and status."""
    return {"id": job.id, "status": job.status.value}


def build_status(job: Job) -> dict[str, Any]:
    """Return the response to `/status`."""
    fields: dict[str, Any] = {"id": job.id, "status": job.status.value}
    if job.delay_ms is not None:
        fields["delayTime"] = job.delay_ms
    if job.execution_ms is not None:
        fields["executionTime"] = job.execution_ms
    if job.worker_id is not None:
        fields["workerId"] = worker_name(job.worker_id)
    if job.error is not None:
        fields["error"] = job.error
    if job.output is not None:
        fields["output"] = orjson.Fragment(job.output)
    elif job.progress and not job.status.is_final:
        fields["output"] = orjson.Fragment(job.progress)
    elif job.status is JobStatus.COMPLETED:
        fields["output"] = None
    return fields


def build_request(job: Job) -> dict[str, Any]:
    """Return the status of a job with its input and webhook, for `/requests` and webhooks."""
    fields = build_status(job)
    fields["input"] = orjson.Fragment(job.input)
    if job.webhook is not None:
        fields["webhook"] = job.webhook
    return fields


def build_worker_job(job: Job) -> dict[str, Any]:
    """Return the job that a worker's handler receives."""
    extra = orjson.loads(job.extra) if job.extra else {}
    extra.pop(DEPTH_KEY, None)
    return {"id": job.id, "input": orjson.Fragment(job.input), **extra}


def build_stream(job: Job, chunks: Iterable[Chunk]) -> dict[str, Any]:
    """Return the response to `/stream`: the job's status and its new chunks."""
    return {
        "status": job.status.value,
        "stream": [{"output": orjson.Fragment(chunk.value)} for chunk in chunks],
    }


# The prefix of the names of workers that the server starts.
MANAGED_PREFIX = "launched-"
LOCAL_WORKER_NAME = "local"


def is_managed(name: str) -> bool:
    """Return whether a worker's name is one of a managed worker, which ends with its server."""
    return name.startswith(MANAGED_PREFIX)


def worker_key(endpoint: str, worker: str) -> str:
    """Return the key of a worker, which is unique across endpoints."""
    return f"{endpoint}/{worker}"


def worker_name(key: str) -> str:
    """Return the name of a worker from its key."""
    return key.partition("/")[2] or key
