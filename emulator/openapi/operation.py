"""One operation of the API as /openapi.json describes it, and what many operations share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ENDPOINT = "/v2/{endpoint}"
# Types of bodies.
JSON = "application/json"
FORM = "multipart/form-data"
BYTES = "application/octet-stream"
PLAIN_TEXT = "text/plain"
EVENTS = "text/event-stream"
# Status codes of errors.
NOT_FOUND = (404,)
BODY_ERRORS = (400, 413, 415)
CREATION_ERRORS = (*BODY_ERRORS, 429, 503)
# The description of an operation whose answer is streamed as server-sent events.
STREAMING = "With `stream: true` the answer is a stream of server-sent events."


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the API.

    `response` and `body` are names of schemas. `content_types` are the types of the body,
    `response_type` is the response's. `errors` are the status codes of errors. `endpoint_tag` is
    its tag under `/v2/{endpoint}`, if that is another. `may_be_empty` means that the status can be
    204, `can_stream` that the response can be server-sent events, and `requires_model` that the
    body must have a model, which its schema allows to be absent.
    """

    summary: str
    tag: str
    response: str
    endpoint_tag: str | None = None
    description: str | None = None
    body: str | None = None
    content_types: tuple[str, ...] = (JSON,)
    response_type: str = JSON
    query: tuple[dict[str, Any], ...] = ()
    errors: tuple[int, ...] = ()
    may_be_empty: bool = False
    can_stream: bool = False
    requires_model: bool = False

    def tag_at(self, path: str) -> str:
        """Return the tag of the operation at one of its paths."""
        return (path.startswith(ENDPOINT) and self.endpoint_tag) or self.tag


def call_operation(
    summary: str, response: str, body: str, *, tag: str, errors: tuple[int, ...] = (), **rest: Any
) -> Operation:
    """Return an operation that calls a model; `errors` are its additional failures."""
    errors = (*CREATION_ERRORS, 404, 500, 504, *errors)
    return Operation(summary=summary, tag=tag, response=response, body=body, errors=errors, **rest)


def query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """Return a parameter of the query string."""
    return {"name": name, "in": "query", "description": description, "schema": schema}


def limit_query(maximum: int, default: int) -> dict[str, Any]:
    """Return the parameter that limits the size of a page."""
    description = "The largest number of items to return."
    return query("limit", description, type="integer", minimum=1, maximum=maximum, default=default)


def wait_query(description: str) -> dict[str, Any]:
    """Return the parameter that limits how long a request waits."""
    return query(
        "wait", description, type="integer", minimum=1_000, maximum=300_000, default=90_000
    )
