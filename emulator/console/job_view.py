"""Jobs as the console shows them: with all their moments, in milliseconds since 1970."""

from __future__ import annotations

from typing import Any

import orjson

from emulator.runpod import job_response
from jobs import Job

# A longer input is not read for the list: a hundred of them would take its time.
_READ_BYTES = 20_000
_SHOWN = 120


def summary_view(job: Job, first_token_at: float | None) -> dict[str, Any]:
    """Return a job without what is as long as its sender or the model likes."""
    started = job.started_at
    # One of an earlier attempt says nothing of this one.
    first = first_token_at if started and first_token_at and first_token_at >= started else None
    shown: dict[str, Any] = {
        "id": job.id,
        "endpoint": job.endpoint,
        "status": job.status.value,
        "createdAt": _ms(job.created_at),
        "queuedAt": _ms(job.queued_at),
        "startedAt": _ms(started),
        "firstTokenAt": _ms(first),
        "endedAt": _ms(job.ended_at),
        "attempt": job.attempt,
        "losses": job.lost_attempts,
        "retries": job.retries,
        "workerId": job_response.worker_name(job.worker_id) if job.worker_id else None,
        "webhook": _webhook(job),
        "preview": _preview(job.input),
    }
    return shown


def full_view(job: Job, first_token_at: float | None) -> dict[str, Any]:
    """Return all of a job that a client may see."""
    return {**summary_view(job, first_token_at), **job_response.request(job)}


def _webhook(job: Job) -> str:
    if job.webhook is None:
        return "none"
    return "done" if job.webhook_sent else "due"


def _preview(given: bytes) -> str:
    """Return the first words of what a job asks, for a list."""
    if len(given) > _READ_BYTES:
        return ""
    asked = orjson.loads(given)
    if isinstance(asked, dict):
        asked = asked.get("openai_input") or asked
    if isinstance(asked, dict):
        messages = asked.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        turn = last.get("content") if isinstance(last, dict) else None
        asked = asked.get("prompt") or turn or asked
    text = asked if isinstance(asked, str) else orjson.dumps(asked).decode()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
