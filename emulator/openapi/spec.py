"""Build the OpenAPI 3.1 description of the server's routes from the descriptions of the APIs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from emulator.http.error_format import ErrorFormat
from emulator.http.route_facts import Access, ApiRoute
from emulator.openapi.descriptions import DESCRIPTIONS
from emulator.openapi.operation import ENDPOINT, EVENTS, JSON, Operation
from emulator.openapi.schemas import model_names, ref
from emulator.settings.emulator_settings import EmulatorSettings

TAGS = {name: text for each in DESCRIPTIONS for name, text in each.tags.items()}
OPERATIONS = {path: known for each in DESCRIPTIONS for path, known in each.operations.items()}
_EXAMPLES = {body: known for each in DESCRIPTIONS for body, known in each.examples.items()}
_PATH_PARAMETERS = {
    "endpoint": "The endpoint's id.",
    **{name: text for each in DESCRIPTIONS for name, text in each.path_parameters.items()},
}
_ERROR_SCHEMAS = {
    error_format: schema
    for each in DESCRIPTIONS
    for error_format, schema in each.error_schemas.items()
}

_PARAMETER = re.compile(r"\{(\w+)\}")
_FAILURES = {
    400: "Invalid request; `param` names the field.",
    401: "The API key is missing or unknown.",
    404: "Not found, or no longer kept.",
    413: "The body is too large.",
    415: "The Content-Type is not supported: a browser must send application/json, and an upload "
    "multipart/form-data.",
    429: "Too many requests; `Retry-After` has the seconds to wait.",
    499: "The job of this request was cancelled.",
    500: "The engine or the server failed.",
    502: "The worker was lost, or its answer is invalid.",
    503: "Temporarily unavailable: the engine, the disk, or the server is shutting down.",
    504: "The engine took too long, or no worker took the request.",
    507: "No space left on the disk, or for files.",
}
_DESCRIPTION = """\
A local RunPod in front of an LLM: RunPod's job API for clients and workers, and OpenAI's API.

Open an operation and press **Execute** to send its example to this server. The default model is \
small: it shows that everything works, and its answers are often wrong. A JSON body from a client \
that is not a browser is accepted with any Content-Type.
"""


def openapi_path(path: str) -> str:
    """Return a route's path in OpenAPI's syntax, without the types of its parameters."""
    return path.replace(":path}", "}")


def build_description(routes: Iterable[ApiRoute], settings: EmulatorSettings) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of those routes that have an operation."""
    paths: dict[str, Any] = {}
    for route in routes:
        path = openapi_path(route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            if (operation := _find_operation(path, method)) is not None:
                described = _describe_operation(operation, method, route, settings)
                paths.setdefault(path, {})[method.lower()] = described
    schemas = {
        name: schema
        for each in DESCRIPTIONS
        for name, schema in each.build_schemas(settings).items()
    }
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "worker-rkllm",
            "version": "1",
            "description": _DESCRIPTION,
        },
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": _sort_paths(paths),
        "components": {
            # In the order of their names, whichever API they belong to.
            "schemas": dict(sorted(schemas.items())),
        },
    }
    if settings.keys():
        bearer = {
            "type": "http",
            "scheme": "bearer",
            "description": "One of the keys in the server's setting `API_KEYS`.",
        }
        header = {"type": "apiKey", "in": "header", "name": "x-api-key"}
        description["components"]["securitySchemes"] = {"key": bearer, "header": header}
        description["security"] = [{"key": []}, {"header": []}]
    return description


def _find_operation(path: str, method: str) -> Operation | None:
    """Return the operation of a route; None if the route is not documented."""
    short = path.removeprefix(ENDPOINT)
    for name in (f"{method} {path}", path, f"{method} {short}", short):
        if (operation := OPERATIONS.get(name)) is not None:
            return operation
    return None


def _describe_operation(
    operation: Operation, method: str, route: ApiRoute, settings: EmulatorSettings
) -> dict[str, Any]:
    path, facts, models = openapi_path(route.path), route.facts, settings.served_models
    is_open = facts.access is not Access.KEY
    parameters = [_build_path_parameter(name, settings) for name in _PARAMETER.findall(path)]
    responses: dict[str, Any] = {"200": _build_success(operation)}
    if operation.may_be_empty:
        responses["204"] = {"description": "No job is available."}
    if operation.response == "Health":
        responses["503"] = _build_content(
            "The same, if the server cannot answer requests.", "Health"
        )
    media_type = ErrorFormat.PROBLEM.value if facts.error_format is ErrorFormat.PROBLEM else JSON
    for code in sorted({*operation.errors, *(() if is_open else (401,))}):
        responses[str(code)] = _build_content(
            _FAILURES[code], _ERROR_SCHEMAS[facts.error_format], media_type
        )
    described: dict[str, Any] = {
        "operationId": _operation_id(method, path),
        "summary": operation.summary,
        "tags": [operation.tag_at(path)],
        "parameters": [*parameters, *operation.query],
        "responses": responses,
    }
    if operation.description is not None:
        described["description"] = operation.description
    if is_open:
        described["security"] = []
    if operation.body is not None:
        body = ref(operation.body)
        if operation.requires_model:
            body = {
                "allOf": [
                    body,
                    {"required": ["model"], "properties": {"model": {"enum": model_names(models)}}},
                ]
            }
        request_body = {"schema": body, **_EXAMPLES[operation.body].describe(models[0])}
        content = dict.fromkeys(operation.content_types, request_body)
        described["requestBody"] = {"required": True, "content": content}
    return described


def _operation_id(method: str, path: str) -> str:
    """Return a name in camel case: Swagger UI's deep links take an underscore for a space."""
    return method.lower() + "".join(word.title() for word in re.findall(r"[a-z0-9]+", path))


def _sort_paths(paths: dict[str, Any]) -> dict[str, Any]:
    """Return the paths in the order of their tags, paths without an endpoint first."""
    tags = [*TAGS]

    def sort_key(path: str) -> tuple[int, bool]:
        operations = paths[path].values()
        return min(tags.index(each["tags"][0]) for each in operations), path.startswith(ENDPOINT)

    return {path: paths[path] for path in sorted(paths, key=sort_key)}


def _build_path_parameter(name: str, settings: EmulatorSettings) -> dict[str, Any]:
    """Return a path parameter; `model` and `endpoint` have defaults, so examples can be sent."""
    schema: dict[str, Any] = {"type": "string", "minLength": 1, "pattern": "^[^/]+$"}
    if name == "model":
        names = settings.served_models
        schema = {"enum": model_names(names), "default": names[0]}
    elif name == "endpoint":
        schema["default"] = settings.endpoint_id
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _PATH_PARAMETERS[name],
        "schema": schema,
    }


def _build_success(operation: Operation) -> dict[str, Any]:
    answer = _build_content("Success.", operation.response, operation.response_type)
    if operation.can_stream:
        answer["content"][EVENTS] = {"schema": {"type": "string"}}
    return answer


def _build_content(description: str, name: str, label: str = JSON) -> dict[str, Any]:
    return {
        "description": description,
        "content": {label: {"schema": ref(name)}},
    }
