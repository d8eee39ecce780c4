"""Building blocks of the bodies' schemas: JSON Schemas, as OpenAPI 3.1 has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from pydantic import BaseModel

from handler.input.messages import UNREADABLE_PARTS
from handler.models.model_name_map import LATEST

Schema: TypeAlias = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
ANY: Schema = {}


def ref(name: str) -> Schema:
    """Return a reference to a schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def object_of(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with these keys; others are allowed."""
    properties = required | (optional or {})
    return {"type": "object", "required": list(required), "properties": properties}


def list_of(items: Schema) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": items}


def counts_of(*names: str) -> Schema:
    """Return the schema of an object with these counts."""
    return object_of(dict.fromkeys(names, COUNT))


def model_names(names: Sequence[str]) -> list[str]:
    """Return all names of models in requests: each also with `:latest` after it."""
    return list(dict.fromkeys((*names, *(name + LATEST for name in names))))


def or_null(schema: Schema) -> Schema:
    """Return the schema of the same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


# The server fetches no images, so that other URLs are refused.
IMAGE_URL: Schema = {
    "type": "string",
    "pattern": "^[Dd][Aa][Tt][Aa]:[Ii][Mm][Aa][Gg][Ee]/",
    "description": "A data URL such as `data:image/png;base64,…`.",
}
TEXT_PART = object_of({"type": {"const": "text"}, "text": TEXT})
# OpenAI's form of the contents of chat messages.
_PARTS: list[Schema] = [
    TEXT_PART,
    object_of({"type": {"const": "refusal"}, "refusal": TEXT}),
    object_of({"type": {"enum": sorted(UNREADABLE_PARTS)}})
    | {"description": "A sentence takes its place."},
]
_IMAGE_PART = object_of(
    {
        "type": {"const": "image_url"},
        "image_url": {"anyOf": [IMAGE_URL, object_of({"url": IMAGE_URL})]},
    }
)
# Outside of the user's messages, an image that cannot be read is left out.
_ANY_IMAGE_PART = object_of({"type": {"const": "image_url"}})
TEXTS: Schema = {"anyOf": [TEXT, list_of({"anyOf": [*_PARTS, _ANY_IMAGE_PART]})]}
TEXTS_AND_IMAGES: Schema = {"anyOf": [TEXT, list_of({"anyOf": [*_PARTS, _IMAGE_PART]})]}


def fields_of(model: type[BaseModel]) -> dict[str, Schema]:
    """Return the fields of a pydantic model as schemas, without generated titles."""
    fields: dict[str, Schema] = model.model_json_schema()["properties"]
    for field in fields.values():
        field.pop("title", None)
    return fields
