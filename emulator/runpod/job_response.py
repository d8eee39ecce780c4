"""Jobs as RunPod shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from emulator.runpod.webhook_loops import DEPTH_KEY
from jobs import Chunk, Job, JobStatus


def accepted(job: Job) -> dict[str, Any]:
    """Return the answer to `/run`: where to ask again."""
    return {"id": job.id, "status": job.status.value}


def status(job: Job) -> dict[str, Any]:
    """Return a job as `/status` shows it."""
    shown: dict[str, Any] = {"id": job.id, "status": job.status.value}
    if job.delay_ms is not None:
        shown["delayTime"] = job.delay_ms
    if job.execution_ms is not None:
        shown["executionTime"] = job.execution_ms
    if job.worker_id is not None:
        shown["workerId"] = worker_name(job.worker_id)
    if job.error is not None:
        shown["error"] = job.error
    if job.output is not None:
        shown["output"] = orjson.Fragment(job.output)
    elif job.progress and not job.status.is_final:
        shown["output"] = orjson.Fragment(job.progress)
    elif job.status is JobStatus.COMPLETED:
        shown["output"] = None
    return shown


def request(job: Job) -> dict[str, Any]:
    """Return a job with what it was sent with, as `/requests` and webhooks show it."""
    shown = status(job)
    shown["input"] = orjson.Fragment(job.input)
    if job.webhook is not None:
        shown["webhook"] = job.webhook
    return shown


def handed_out(job: Job) -> dict[str, Any]:
    """Return a job as a worker's handler gets it."""
    extra = orjson.loads(job.extra) if job.extra else {}
    extra.pop(DEPTH_KEY, None)
    return {"id": job.id, "input": orjson.Fragment(job.input), **extra}


def stream(job: Job, chunks: Iterable[Chunk]) -> dict[str, Any]:
    """Return the answer to `/stream`: what is new, and whether more may come."""
    return {
        "status": job.status.value,
        "stream": [{"output": orjson.Fragment(chunk.value)} for chunk in chunks],
    }


def worker_key(endpoint: str, worker: str) -> str:
    """Return the name of a worker among those of all endpoints."""
    return f"{endpoint}/{worker}"


def worker_name(key: str) -> str:
    """Return a worker's own name."""
    return key.partition("/")[2] or key
