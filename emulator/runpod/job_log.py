"""Logs a line when a job starts and a line when it ends, on any worker."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextvars import Context

from emulator.runpod.job_response import worker_name
from handler.logs.json_lines import FIELDS
from handler.logs.reasons import extract_error_message, sanitize_for_log
from jobs import Job, JobStatus

logger = logging.getLogger(__name__)

# The token count of an output, in the forms that jobs and OpenAI bodies have. A quote inside a
# JSON string is written \", so no text that a model generates can match.
_TOKEN_COUNT = re.compile(rb'"usage":\s*\{[^{}]*?"(?:output|completion_tokens)":\s*(\d{1,9})')
# Only the end of an output is searched, because `usage` follows the texts.
_SEARCHED_BYTES = 16_000


def log_started(job: Job) -> None:
    """Log that a job was leased to a worker."""
    if not logger.isEnabledFor(logging.INFO):
        return
    fields = {
        "job_id": job.id,
        "endpoint": job.endpoint,
        "worker": worker_name(job.worker_id or ""),
        "state": job.status.value,
        "attempt": job.attempt,
        "queue_ms": job.delay_ms,
    }
    suffix = f" again (attempt {job.attempt})" if job.attempt > 1 else ""
    _log(f"job {job.id} started{suffix}", fields)


def log_ended(job: Job) -> None:
    """Log how a job ended, how long it waited and ran, and its error if it failed."""
    if not logger.isEnabledFor(logging.INFO):
        return
    fields: dict[str, object] = {
        "job_id": job.id,
        "endpoint": job.endpoint,
        "state": job.status.value,
    }
    if job.worker_id:
        fields["worker"] = worker_name(job.worker_id)
        fields["queue_ms"], fields["run_ms"] = job.delay_ms, job.execution_ms
    elif job.ended_at is not None:
        # The job ended in the queue, without a worker.
        fields["queue_ms"] = max(0, round((job.ended_at - job.queued_at) * 1000))
    if job.output is not None and (tokens := _find_token_count(job.output)) is not None:
        fields["tokens"] = tokens
    if job.error is not None:
        fields["error"] = sanitize_for_log(extract_error_message(job.error) or job.error)
    elif job.status is JobStatus.CANCELLED:
        fields["error"] = "cancelled by its client"
    _log(f"job {job.id} {job.status.value}", fields)


def _log(text: str, fields: Mapping[str, object]) -> None:
    """Log a line about a job without the id of the request in which it starts or ends.

    Workers send the id of their job before as that of a request for the next one.
    """
    Context().run(logger.info, "%s", text, extra={FIELDS: fields})


def _find_token_count(output: bytes) -> int | None:
    """Return the completion token count in the usage of an output; None if it has no usage."""
    counts = _TOKEN_COUNT.findall(output, max(0, len(output) - _SEARCHED_BYTES))
    return int(counts[-1]) if counts else None
