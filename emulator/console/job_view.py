"""Jobs as JSON for the console; times are in milliseconds since 1970."""

from __future__ import annotations

from typing import Any

import orjson

from emulator.runpod import job_response
from jobs import Job

# Longer inputs get no preview: parsing a hundred of them for a list would take too long.
_MAX_PREVIEW_INPUT_BYTES = 20_000
_PREVIEW_CHARS = 120


def summary_view(
    job: Job, first_token_at: float | None, message: str | None = None
) -> dict[str, Any]:
    """Return a job without the fields of unlimited length, its input and output.

    The `message` is the reason why a queued job waits.
    """
    started_at = job.started_at
    # Ignore the first token of an earlier attempt.
    if not (started_at and first_token_at and first_token_at >= started_at):
        first_token_at = None
    return {
        "id": job.id,
        "endpoint": job.endpoint,
        "status": job.status.value,
        "createdAt": _ms(job.created_at),
        "queuedAt": _ms(job.queued_at),
        "startedAt": _ms(started_at),
        "firstTokenAt": _ms(first_token_at),
        "endedAt": _ms(job.ended_at),
        "attempt": job.attempt,
        "losses": job.lost_attempts,
        "retries": job.retries,
        "workerId": job_response.worker_name(job.worker_id) if job.worker_id else None,
        "webhook": _webhook_state(job),
        "preview": _preview(job.input),
        "message": message,
    }


def full_view(job: Job, first_token_at: float | None, message: str | None = None) -> dict[str, Any]:
    """Return all fields of a job that a client may see."""
    return {**summary_view(job, first_token_at, message), **job_response.build_request(job)}


def _webhook_state(job: Job) -> str:
    if job.webhook is None:
        return "none"
    return "done" if job.webhook_sent else "due"


def _preview(job_input: bytes) -> str:
    """Return the beginning of a job's prompt, for a list."""
    if len(job_input) > _MAX_PREVIEW_INPUT_BYTES:
        return ""
    prompt = orjson.loads(job_input)
    if isinstance(prompt, dict):
        prompt = prompt.get("openai_input") or prompt.get("body") or prompt
    if isinstance(prompt, dict):
        messages = prompt.get("messages") or prompt.get("input")
        if isinstance(messages, str):
            messages = [{"content": messages}]
        last = messages[-1] if isinstance(messages, list) and messages else None
        content = last.get("content") if isinstance(last, dict) else None
        prompt = prompt.get("prompt") or content or prompt
    text = prompt if isinstance(prompt, str) else orjson.dumps(prompt).decode()
    return text if len(text) <= _PREVIEW_CHARS else f"{text[: _PREVIEW_CHARS - 1]}…"


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
