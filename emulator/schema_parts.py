"""What the descriptions of bodies are put together from: JSON Schemas, as OpenAPI 3.1 has them."""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic import BaseModel

Schema: TypeAlias = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
ANY: Schema = {}


def ref(name: str) -> Schema:
    """Return a reference to one of the schemas."""
    return {"$ref": f"#/components/schemas/{name}"}


def object_of(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """Return an object with these keys; it may have others."""
    properties = required | (optional or {})
    return {"type": "object", "required": list(required), "properties": properties}


def list_of(items: Schema) -> Schema:
    """Return an array."""
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    """Return the same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def fields_of(model: type[BaseModel]) -> dict[str, Schema]:
    """Return the fields that a model of ours checks, in the words of its own errors."""
    fields: dict[str, Schema] = model.model_json_schema()["properties"]
    for field in fields.values():
        field.pop("title", None)
    return fields
