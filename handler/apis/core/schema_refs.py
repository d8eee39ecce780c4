"""Move a JSON Schema into another one, so that its references still lead to the same parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.json_object import JsonObject

# Keywords whose value is data, not a schema.
_DATA = frozenset({"const", "default", "enum", "example", "examples"})
# Keywords whose value has schemas by names that the author of the schema chose.
_BY_NAME = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)


def move_refs(schema: JsonObject, path: str) -> dict[str, Any]:
    """Return a schema for the place `path` of another one, such as `#/properties/arguments`.

    References are JSON pointers from the root (RFC 6901), so they begin with the path of the new
    place. `#` alone, a recursive schema, becomes the path. A name (`$anchor`) stays.
    """
    return {key: _move(key, value, path) for key, value in schema.items()}


def _move(key: str, value: Any, path: str) -> Any:
    if key in _DATA:
        return value
    if key == "$ref" and isinstance(value, str):
        return path + value[1:] if value == "#" or value.startswith("#/") else value
    if key in _BY_NAME and isinstance(value, Mapping):
        return {name: _move_part(part, path) for name, part in value.items()}
    return _move_part(value, path)


def _move_part(part: Any, path: str) -> Any:
    if isinstance(part, Mapping):
        return move_refs(part, path)
    return [_move_part(each, path) for each in part] if isinstance(part, list) else part
