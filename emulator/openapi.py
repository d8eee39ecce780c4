"""The OpenAPI description of the server's routes, by hand, so that it says what is true."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute, Route

from emulator.examples import example
from emulator.openai_schemas import openai_schemas
from emulator.schema_parts import ref
from emulator.schemas import schemas
from emulator.settings import EmulatorSettings

_PARAMETER = re.compile(r"\{(\w+)\}")
_ENDPOINT = "/v2/{endpoint}"
_JSON = "application/json"
_EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What can be asked at a path: `answer` and `body` name schemas, `errors` what may be wrong.

    `labels` are the content types of the body; workers label theirs as they like.
    """

    summary: str
    tag: str
    answer: str
    body: str | None = None
    labels: tuple[str, ...] = (_JSON,)
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
_NOT_THERE = (404,)
_SENT = (400, 413, 415)
_NEW = (*_SENT, 429, 503)
# Of a call whose job was cancelled, and of a worker that is lost or says something else.
_JOB = (499, 502)
_POSTED = (_JSON, "application/x-www-form-urlencoded")


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


# By the path behind the endpoint, or the whole of it.
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
    f"{_ENDPOINT}/health": _client("Count an endpoint's jobs and workers", "EndpointHealth"),
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
    "/tokenize": _openai("Turn text into tokens", "Tokens", "Tokenize"),
    "/detokenize": _openai("Turn tokens into text", "Detokenized", "Detokenize"),
    "/health": Operation(summary="Tell how the server is", tag=_SERVER, answer="Health"),
}
# Open to all, whatever API_KEYS says.
_PUBLIC = frozenset({"/health"})
_SAID = {
    400: "something in the request is wrong; `param` names it",
    401: "no key, or none that is known (with API_KEYS)",
    404: "there is no such thing, or no longer",
    413: "the body is too large",
    415: "the body is not labelled JSON",
    429: "too much of it; Retry-After says when to come again",
    499: "somebody cancelled the call's job",
    500: "the engine or the server failed",
    502: "the worker was lost, or what it said is no answer",
    503: "not now: the engine, the disk or the server's end does not let it",
    504: "the engine took too long, or no worker took the call",
}


def operation(path: str) -> Operation | None:
    """Return what is known of a route's path."""
    path = plain(path)
    return OPERATIONS.get(path) or OPERATIONS.get(path.removeprefix(_ENDPOINT))


def plain(path: str) -> str:
    """Return a route's path as the standard writes it: without the kinds of its parameters."""
    return path.replace(":path}", "}")


def describe(routes: Iterable[BaseRoute], settings: EmulatorSettings) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of these routes; one that is not known is left out."""
    limits = settings.policy_limits()
    week = 7 * 24 * 3600 * 1000
    policy = {
        "executionTimeout": (limits.least_execution_timeout_ms, week),
        "ttl": (limits.least_ttl_ms, week),
    }
    paths: dict[str, Any] = {}
    for route in routes:
        known = operation(route.path) if isinstance(route, Route) else None
        if not isinstance(route, Route) or known is None:
            continue
        for method in sorted((route.methods or set()) - {"HEAD"}):
            described = _described(known, method, plain(route.path), settings.served_model)
            paths.setdefault(plain(route.path), {})[method.lower()] = described
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "worker-rkllm: a local RunPod",
            "version": "1",
            "description": "RunPod's client and worker routes and OpenAI's. The paths without "
            f"/v2/{{endpoint}} mean the endpoint `{settings.endpoint_id}`.",
        },
        "paths": paths,
        "components": {"schemas": schemas(policy) | openai_schemas(settings.served_model)},
    }
    if settings.keys():
        bearer = {"type": "http", "scheme": "bearer"}
        description["components"]["securitySchemes"] = {"key": bearer}
        description["security"] = [{"key": []}]
    return description


def _described(known: Operation, method: str, path: str, model: str) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"enum": [model]}
            if name == "model"
            else {"type": "string", "minLength": 1, "pattern": "^[^/]+$"},
        }
        for name in _PARAMETER.findall(path)
    ]
    answers: dict[str, Any] = {"200": _answer(known)}
    if known.empty:
        answers["204"] = {"description": "nothing to do for now"}
    if known.answer == "Health":
        answers["503"] = _content("the same, of a server that cannot answer", "Health")
    errors = {*known.errors, *(() if path in _PUBLIC else (401,))}
    for code in sorted(errors):
        # Whoever has no key is told before it is known what is asked for.
        told = "NamedError" if known.named and code != 401 else "Error"
        answers[str(code)] = _content(_SAID[code], told)
    described: dict[str, Any] = {
        "operationId": f"{method.lower()}{re.sub(r'[^a-z0-9]+', '_', path)}",
        "summary": known.summary,
        "tags": [known.tag],
        "parameters": [*parameters, *known.query],
        "responses": answers,
    }
    if path in _PUBLIC:
        described["security"] = []
    if known.body is not None:
        body = ref(known.body)
        if path.startswith("/v3/"):
            # The only family that does not take the model for granted (R7).
            body = {
                "allOf": [body, {"required": ["model"], "properties": {"model": {"const": model}}}]
            }
        given = {"schema": body, "example": example(known.body, model)}
        content = dict.fromkeys(known.labels, given)
        described["requestBody"] = {"required": True, "content": content}
    return described


def _answer(known: Operation) -> dict[str, Any]:
    found = _content("as asked", known.answer)
    if known.events:
        found["content"][_EVENTS] = {"schema": {"type": "string"}}
    return found


def _content(description: str, name: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {_JSON: {"schema": ref(name)}},
    }
