"""Limits for a JSON Schema, checked before a library reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.schema.grammar_cost import find_cost_violation, resolve_ref

# Levels of groups, or of a schema and of references that follow each other. llguidance recurses,
# and some 1,600 levels overflow a stack of 8 MB, which ends the process.
MAX_LEVELS = 400
# llguidance makes 64-bit numbers of integers and of limits. It refuses a limit below this one, and
# for a single allowed value below it recurses without end, which ends the process.
MIN_NUMBER = 1024 - 2**63


def find_schema_excess(schema: Mapping[str, Any]) -> str | None:
    """Return why a schema is too much for llguidance, as the rest of a sentence; None if not."""
    # In this order: the estimate follows references, which may lead deep.
    return _find_depth_excess(schema) or find_cost_violation(schema) or _find_number_excess(schema)


def _shorten(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _find_depth_excess(schema: Mapping[str, Any]) -> str | None:
    """Return why a schema is too deep, including the parts that it refers to; None if it is not."""
    levels, pending = 0, ["#"]
    for ref in pending:
        if not re.match("#(/|$)", ref):
            return f"a $ref must be within the schema, as #/$defs/…, not {_shorten(ref, 60)}"
        height, refs = _measure_height(resolve_ref(schema, ref))
        levels += height
        if levels > MAX_LEVELS:
            return f"it has more than {MAX_LEVELS} levels, with what it refers to"
        pending += refs - set(pending)
    return None


def _measure_height(part: Any) -> tuple[int, set[str]]:
    """Return how many levels a part has, and its references."""
    height, refs, level = 0, set[str](), [part]
    while level:
        height += 1
        refs |= {
            each["$ref"] for each in level if type(each) is dict and type(each.get("$ref")) is str
        }
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return height, refs


def _find_number_excess(schema: Mapping[str, Any]) -> str | None:
    """Return why a number of a schema ends llguidance's process; None if no number does.

    It does not matter where the number is: an object can have a property named `default`, and the
    number may be a limit of that property.
    """
    pending: list[Any] = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, int | float) and value < MIN_NUMBER:
            return f"its numbers must be at least {MIN_NUMBER}, got {_shorten(str(value), 60)}"
    return None
