"""The OpenAPI description of the server's routes, by hand, so that it says what is true."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from starlette.routing import BaseRoute, Route

from emulator.batches.schemas import batch_schemas
from emulator.console.schemas import console_schemas
from emulator.examples import example
from emulator.openai_schemas import openai_schemas
from emulator.operations import JSON, Operation, operation
from emulator.schema_parts import ref
from emulator.schemas import schemas
from emulator.settings import EmulatorSettings

_PARAMETER = re.compile(r"\{(\w+)\}")
_EVENTS = "text/event-stream"

_SAID = {
    400: "something in the request is wrong; `param` names it",
    401: "no key, or none that is known (with API_KEYS)",
    404: "there is no such thing, or no longer",
    413: "the body is too large",
    415: "the body is not labelled as what it must be",
    429: "too much of it; Retry-After says when to come again",
    499: "somebody cancelled the call's job",
    500: "the engine or the server failed",
    502: "the worker was lost, or what it said is no answer",
    503: "not now: the engine, the disk or the server's end does not let it",
    504: "the engine took too long, or no worker took the call",
    507: "the disk, or what of it is for files, does not take it",
}


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
        if not isinstance(route, Route):
            continue
        path = plain(route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            if (known := operation(path, method)) is not None:
                described = _described(known, method, path, settings)
                paths.setdefault(path, {})[method.lower()] = described
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "worker-rkllm: a local RunPod",
            "version": "1",
            "description": "RunPod's client and worker routes and OpenAI's. The paths without "
            f"/v2/{{endpoint}} mean the endpoint `{settings.endpoint_id}`.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas(policy)
            | openai_schemas(settings.served_models, settings.served_adapters)
            | batch_schemas()
            | console_schemas()
        },
    }
    if settings.keys():
        bearer = {"type": "http", "scheme": "bearer"}
        description["components"]["securitySchemes"] = {"key": bearer}
        description["security"] = [{"key": []}]
    return description


def _described(
    known: Operation, method: str, path: str, settings: EmulatorSettings
) -> dict[str, Any]:
    models, is_open = settings.served_models, path in settings.open_paths()
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"enum": [*models]}
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
    errors = {*known.errors, *(() if is_open else (401,))}
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
    if is_open:
        described["security"] = []
    if known.body is not None:
        body = ref(known.body)
        if path.startswith("/v3/"):
            # The only family that does not take the model for granted (R7).
            body = {
                "allOf": [
                    body,
                    {"required": ["model"], "properties": {"model": {"enum": [*models]}}},
                ]
            }
        given = {"schema": body, "example": example(known.body, models[0])}
        content = dict.fromkeys(known.labels, given)
        described["requestBody"] = {"required": True, "content": content}
    return described


def _answer(known: Operation) -> dict[str, Any]:
    found = _content("as asked", known.answer, known.label)
    if known.events:
        found["content"][_EVENTS] = {"schema": {"type": "string"}}
    return found


def _content(description: str, name: str, label: str = JSON) -> dict[str, Any]:
    return {
        "description": description,
        "content": {label: {"schema": ref(name)}},
    }
