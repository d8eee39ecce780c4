"""`response_format`: answers that are JSON, or JSON of a given shape (R39)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from engine.schema_cost import find_cost_violation
from handler.errors import InvalidRequest
from handler.json_size import exceeds
from handler.sampling import describe_value
from handler.unknown_keys import KnownKeys

_PARAM = "response_format"
# Its text; a grammar is made of it, which grows with it.
MAX_SCHEMA_BYTES = 100_000
_KEYS = KnownKeys(
    f"{_PARAM}.",
    ("json_schema", "type"),
    notes={"schema": "is not supported and was ignored: use type json_schema with json_schema"},
)
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def read_response_format(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON Schema an answer must fit, None where it may be any text.

    Raises:
        InvalidRequest: it is none of OpenAI's three formats.
    """
    given = body.get(_PARAM)
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "json_schema":
        raise InvalidRequest(
            'response_format must be an object with type "text", "json_object" or "json_schema", '
            f"got {describe_value(given)}",
            _PARAM,
        )
    named = given.get("json_schema")
    schema = named.get("schema") if isinstance(named, Mapping) else None
    if not isinstance(schema, Mapping):
        raise InvalidRequest(
            "response_format.json_schema must be an object with a schema, which is an object, "
            f"got {describe_value(named)}",
            _PARAM,
        )
    check_schema(schema, "response_format.json_schema.schema", _PARAM)
    check_cost(schema, "response_format.json_schema.schema", _PARAM)
    return schema


def format_warnings(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return sentences about members of `response_format` that have no effect."""
    given = body.get(_PARAM)
    return _KEYS.warnings(given) if isinstance(given, Mapping) else ()


def check_schema(schema: Mapping[str, Any], path: str, param: str) -> None:
    """Refuse a schema that is too long, or cannot cross to the engine. Raises InvalidRequest."""
    if exceeds(schema, MAX_SCHEMA_BYTES):
        raise InvalidRequest(
            f"{path} must have at most {MAX_SCHEMA_BYTES} bytes, and it has more", param
        )
    try:
        size = len(orjson.dumps(schema))
    except TypeError:
        raise InvalidRequest(
            f"{path} must be of Unicode text, numbers of up to 64 bits and not too many levels",
            param,
        ) from None
    if size > MAX_SCHEMA_BYTES:
        raise InvalidRequest(
            f"{path} must have at most {MAX_SCHEMA_BYTES} bytes, got {size}", param
        )


def check_cost(schema: Mapping[str, Any], path: str, param: str) -> None:
    """Refuse a schema whose grammar would take an engine too much time or memory.

    Raises:
        InvalidRequest: naming the field within the schema, or the size of the whole.
    """
    if (why := find_cost_violation(schema)) is not None:
        raise InvalidRequest(f"{path} asks for too much: {why}", param)
