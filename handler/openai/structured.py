"""Read `response_format`: answers in JSON, or in JSON that matches a schema (R39)."""

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
# The size of the schema as JSON. The grammar that the engine builds from it grows with it.
MAX_SCHEMA_BYTES = 100_000
_KEYS = KnownKeys(
    f"{_PARAM}.",
    ("json_schema", "type"),
    notes={"schema": "is not supported and was ignored: use type json_schema with json_schema"},
)
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def read_response_format(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON Schema that an answer must match; None if any text is allowed.

    Raises:
        InvalidRequest: the format is not one of OpenAI's three.
    """
    response_format = body.get(_PARAM)
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "json_schema":
        raise InvalidRequest(
            'response_format must be an object with type "text", "json_object" or "json_schema", '
            f"got {describe_value(response_format)}",
            _PARAM,
        )
    json_schema = response_format.get("json_schema")
    schema = json_schema.get("schema") if isinstance(json_schema, Mapping) else None
    if not isinstance(schema, Mapping):
        raise InvalidRequest(
            "response_format.json_schema must be an object with a schema, which is an object, "
            f"got {describe_value(json_schema)}",
            _PARAM,
        )
    check_schema(schema, "response_format.json_schema.schema", _PARAM)
    check_cost(schema, "response_format.json_schema.schema", _PARAM)
    return schema


def format_warnings(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a warning for each member of `response_format` that has no effect."""
    response_format = body.get(_PARAM)
    return _KEYS.warnings(response_format) if isinstance(response_format, Mapping) else ()


def check_schema(schema: Mapping[str, Any], path: str, param: str) -> None:
    """Check that a schema is not too long and can be encoded for the engine process.

    Raises:
        InvalidRequest: it is too long, or orjson cannot encode it.
    """
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
    """Check that a schema's grammar does not take the engine too much time or memory.

    Raises:
        InvalidRequest: the grammar is too large; the message names the field or the total size.
    """
    if (violation := find_cost_violation(schema)) is not None:
        raise InvalidRequest(f"{path} asks for too much: {violation}", param)
