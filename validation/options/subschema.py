"""One subschema of a JSON Schema and the values that its parts apply to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf")
_SCHEMA_KEYWORDS = ("not", "if", "then", "else")
_MAP_KEYWORDS = ("dependentSchemas", "dependencies")
_MEMBER_KEYWORDS = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_ITEM_KEYWORDS = ("items", "additionalItems", "unevaluatedItems", "contains")
# For these keywords, a validator evaluates the other keywords of the subschema again.
_UNEVALUATED_KEYWORDS = ("unevaluatedProperties", "unevaluatedItems")
_UNEVALUATED_WEIGHT = 3


class Subschema:
    """A subschema, with its parts that apply to the same value, its members and its items."""

    __slots__ = (
        "compares",
        "every_item",
        "every_member",
        "members",
        "prefix",
        "reads",
        "reads_names",
        "same_value",
        "size",
        "weight",
    )

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.weight = (
            _UNEVALUATED_WEIGHT if any(name in schema for name in _UNEVALUATED_KEYWORDS) else 1
        )
        self.size = 1 + sum(
            len(value) if isinstance(value, list | dict) else 1 for value in schema.values()
        )
        self.reads = ("pattern" in schema) + ("format" in schema)
        self.reads_names = len(_as_dict(schema.get("patternProperties")))
        self.compares = "uniqueItems" in schema
        self.same_value: list[Any] = [
            *(part for name in _LIST_KEYWORDS for part in _as_list(schema.get(name))),
            *(schema[name] for name in _SCHEMA_KEYWORDS if name in schema),
            *(part for name in _MAP_KEYWORDS for part in _as_dict(schema.get(name)).values()),
        ]
        self.members = _as_dict(schema.get("properties"))
        # Count these for each member, without checking whether they apply to its name.
        self.every_member: list[Any] = [
            *(schema[name] for name in _MEMBER_KEYWORDS if name in schema),
            *_as_dict(schema.get("patternProperties")).values(),
        ]
        self.prefix = [*_as_list(schema.get("prefixItems")), *_as_list(schema.get("items"))]
        self.every_item: list[Any] = [schema[name] for name in _ITEM_KEYWORDS if name in schema]
        if self.weight > 1 and "contains" in schema:
            self.every_item += [schema["contains"]] * (self.weight - 1)

    def iter_children(self) -> Iterator[Any]:
        """Yield the parts that apply to members and items."""
        yield from self.members.values()
        yield from self.every_member
        yield from self.prefix
        yield from self.every_item


def _as_list(part: Any) -> list[Any]:
    return part if isinstance(part, list) else []


def _as_dict(part: Any) -> dict[str, Any]:
    return part if isinstance(part, dict) else {}
