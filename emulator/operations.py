"""What can be asked of the server, by its paths: a table, by hand, so that it says what is true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emulator.calls import METRICS
from jobs import JobStatus

ENDPOINT = "/v2/{endpoint}"
JSON = "application/json"
FORM = "multipart/form-data"
BYTES = "application/octet-stream"
TEXT = "text/plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What can be asked at a path: `answer` and `body` name schemas, `errors` what may be wrong.

    `labels` are the content types of the body, workers label theirs as they like, and `label` is
    that of the answer.
    """

    summary: str
    tag: str
    answer: str
    body: str | None = None
    labels: tuple[str, ...] = (JSON,)
    label: str = JSON
    query: tuple[dict[str, Any], ...] = ()
    errors: tuple[int, ...] = ()
    empty: bool = False
    events: bool = False
    # Errors have a name for their code, as the oracle's have.
    named: bool = False


def _query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_WAIT = _query(
    "wait",
    "how long to wait for the end, in milliseconds",
    type="integer",
    minimum=1_000,
    maximum=300_000,
    default=90_000,
)
_FOR_WORKER = {
    **_WAIT,
    "description": "how long to wait for a worker that takes the call, in milliseconds",
}
_BATCH = _query(
    "batch_size", "at most so many jobs", type="integer", minimum=1, maximum=1_000, default=1
)
_JOBS, _WORKERS, _OPENAI, _SERVER = "jobs", "workers", "OpenAI", "server"
_CONSOLE = "console"
_NOT_THERE = (404,)
_SENT = (400, 413, 415)
_NEW = (*_SENT, 429, 503)
# Of a call whose job was cancelled, and of a worker that is lost or says something else.
_JOB = (499, 502)
_ORDERED = (
    _query("after", "the id behind which the page begins", type="string"),
    _query("order", "by the time at which they were made", enum=["asc", "desc"], default="desc"),
)
_POSTED = (JSON, "application/x-www-form-urlencoded")


def _client(summary: str, answer: str, **rest: Any) -> Operation:
    return Operation(summary=summary, tag=_JOBS, answer=answer, **rest)


def _worker(summary: str, answer: str, **rest: Any) -> Operation:
    return Operation(summary=summary, tag=_WORKERS, answer=answer, **rest)


def _openai(
    summary: str, answer: str, body: str, errors: tuple[int, ...] = (), **rest: Any
) -> Operation:
    errors = (*_NEW, 404, 500, 504, *errors)
    return Operation(summary=summary, tag=_OPENAI, answer=answer, body=body, errors=errors, **rest)


def _family(
    prefix: str, *, errors: tuple[int, ...] = (), models: tuple[int, ...] = (), **rest: Any
) -> dict[str, Operation]:
    """Return the routes of one dialect; `errors` and `models` are what else may be wrong there."""
    return {
        f"{prefix}/completions": _openai(
            "Continue a prompt", "CompletionAnswer", "Completion", errors, events=True, **rest
        ),
        f"{prefix}/chat/completions": _openai(
            "Answer a conversation", "ChatAnswer", "Chat", errors, events=True, **rest
        ),
        f"{prefix}/embeddings": _openai(
            "Make vectors of texts", "EmbeddingsAnswer", "Embeddings", errors, **rest
        ),
        f"{prefix}/models": Operation(
            summary="List the models", tag=_OPENAI, answer="Models", errors=models, **rest
        ),
        f"{prefix}/models/{{model}}": Operation(
            summary="Look at a model", tag=_OPENAI, answer="Model", errors=(404, *models), **rest
        ),
    }


def _batches(summary: str, answer: str, **rest: Any) -> Operation:
    return Operation(summary=summary, tag=_OPENAI, answer=answer, **rest)


def _limit(most: int, default: int) -> dict[str, Any]:
    said = "at most so many on a page"
    return _query("limit", said, type="integer", minimum=1, maximum=most, default=default)


# By the path behind the endpoint, or the whole of it; behind a method where a path has several.
OPERATIONS = {
    "/run": _client("Queue a job", "Accepted", body="NewJob", errors=_NEW),
    "/runsync": _client(
        "Queue a job and wait for its end",
        "Job",
        body="NewJob",
        query=(_WAIT,),
        errors=(*_NEW, 404),
    ),
    "/status/{job_id}": _client("Look at a job", "Job", errors=_NOT_THERE),
    "/status-sync/{job_id}": _client(
        "Wait for a job's end", "Job", query=(_WAIT,), errors=(400, 404)
    ),
    "/stream/{job_id}": _client(
        "Read what a job has said since the last call, or all of it as events",
        "Stream",
        errors=(400, 404),
        events=True,
    ),
    "/cancel/{job_id}": _client("Take a job back", "Accepted", errors=(404, 503)),
    "/retry/{job_id}": _client("Run a failed job again", "Accepted", errors=(400, 404, 503)),
    "/purge-queue": _client("Cancel all jobs that wait", "Purged", errors=(503,)),
    "/requests": _client("List the newest jobs", "Jobs"),
    "/requests/{job_id}": _client("Look at a job and its input", "JobAndInput", errors=_NOT_THERE),
    f"{ENDPOINT}/health": _client("Count an endpoint's jobs and workers", "EndpointHealth"),
    "/job-take/{worker}": _worker("Wait for a job", "TakenJob", errors=(429,), empty=True),
    "/job-take-batch/{worker}": _worker(
        "Wait for jobs", "TakenJobs", query=(_BATCH,), errors=(400, 429), empty=True
    ),
    "/job-stop/{worker}": _worker("Wait for jobs to stop", "JobsToStop", empty=True),
    "/job-stream/{worker}/{job_id}": _worker(
        "Hand in a part of a job's output",
        "Taken",
        body="Chunk",
        labels=_POSTED,
        errors=(400, 413, 429, 503),
    ),
    "/job-done/{worker}/{job_id}": _worker(
        "Hand in a job's result, or a report",
        "Taken",
        body="Result",
        labels=_POSTED,
        errors=(400, 413, 429, 503),
    ),
    "/ping/{worker}": _worker("Give a sign of life", "Taken"),
    **_family("/v1"),
    **_family("/v3"),
    **_family("", named=True),
    # By way of the queue: what can go wrong with a job can go wrong there, with any call.
    **_family(
        "/openai/v1",
        errors=_JOB,
        models=(400, 404, 429, *_JOB, 500, 503, 504),
        query=(_FOR_WORKER,),
    ),
    "/openai/v1/{route}": _openai(
        "Ask the endpoint's worker for anything else it answers",
        "WorkerAnswer",
        "WorkerCall",
        _JOB,
        events=True,
        query=(_FOR_WORKER,),
    ),
    "/system/status": Operation(
        summary="Tell how the engine is doing", tag=_OPENAI, answer="SystemStatus", named=True
    ),
    "POST /v1/files": _batches(
        "Upload a file of requests",
        "File",
        body="NewFile",
        labels=(FORM,),
        errors=(*_SENT, 503, 507),
    ),
    "GET /v1/files": _batches(
        "List the files",
        "Files",
        query=(
            _limit(10_000, 10_000),
            *_ORDERED,
            _query("purpose", "only those with this one", type="string"),
        ),
        errors=(400,),
    ),
    "GET /v1/files/{file_id}": _batches("Look at a file", "File", errors=_NOT_THERE),
    "DELETE /v1/files/{file_id}": _batches("Delete a file", "DeletedFile", errors=(400, 404, 507)),
    "/v1/files/{file_id}/content": _batches(
        "Read a file", "FileContent", label=BYTES, errors=_NOT_THERE
    ),
    "POST /v1/batches": _batches(
        "Have a file of requests answered", "Batch", body="NewBatch", errors=(*_NEW, 404, 507)
    ),
    "GET /v1/batches": _batches(
        "List the batches", "Batches", query=(_limit(100, 20), *_ORDERED), errors=(400,)
    ),
    "/v1/batches/{batch_id}": _batches("Look at a batch", "Batch", errors=_NOT_THERE),
    "/v1/batches/{batch_id}/cancel": _batches(
        "Have no more of a batch answered", "Batch", errors=(400, 404, 507)
    ),
    "/tokenize": _openai("Turn text into tokens", "Tokens", "Tokenize"),
    "/detokenize": _openai("Turn tokens into text", "Detokenized", "Detokenize"),
    METRICS: Operation(
        summary="Tell what is counted, for Prometheus", tag=_SERVER, answer="Metrics", label=TEXT
    ),
    "/console/description": Operation(
        summary="Tell what may be asked, and by which engine it is answered",
        tag=_CONSOLE,
        answer="ConsoleDescription",
    ),
    "/console/jobs": Operation(
        summary="List an endpoint's newest jobs with their moments",
        tag=_CONSOLE,
        answer="ConsoleJobs",
        query=(
            _query("endpoint", "whose jobs; unset is the default one's", type="string"),
            _query("status", "only those in it", enum=[each.value for each in JobStatus]),
        ),
        errors=(400,),
    ),
    "/console/jobs/{job_id}": Operation(
        summary="Look at a job of any endpoint, or follow it as events to its end",
        tag=_CONSOLE,
        answer="ConsoleJob",
        errors=_NOT_THERE,
        events=True,
    ),
    "/health": Operation(summary="Tell how the server is", tag=_SERVER, answer="Health"),
}


def operation(path: str, method: str) -> Operation | None:
    """Return what is known of a route."""
    for name in (f"{method} {path}", path, path.removeprefix(ENDPOINT)):
        if (known := OPERATIONS.get(name)) is not None:
            return known
    return None
