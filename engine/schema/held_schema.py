"""The part of a JSON Schema that the grammar libraries of the engines can hold an answer to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Formats that llguidance and the copy of it inside llama.cpp know. With another one, the copy drops
# the whole grammar without a sign.
HELD_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"}
)
_DATE = (
    r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_N = "[0-9]{1,5}"
_DAYS = f"(?:{_N}Y(?:{_N}M)?(?:{_N}D)?|{_N}M(?:{_N}D)?|{_N}D)"
_HOURS = f"T(?:{_N}H(?:{_N}M)?(?:{_N}S)?|{_N}M(?:{_N}S)?|{_N}S)"
# Formats whose numbers have any number of digits, as expressions whose numbers end.
_ENDING_FORMATS = {
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^P(?:{_N}W|{_DAYS}(?:{_HOURS})?|{_HOURS})$",
    "time": f"^{_TIME}$",
}
_UNHELD_KEYWORDS = frozenset(
    {
        *("contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if"),
        *("maxContains", "minContains", "not", "propertyNames", "then", "unevaluatedItems"),
        *("unevaluatedProperties", "uniqueItems"),
    }
)
# Regular expressions that need more than the text before them to be decided.
_UNHELD_PATTERN = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9bB]|\(\?P=")
# Keywords whose value is data, not a schema.
_DATA = frozenset({"const", "default", "enum", "example", "examples"})
# Keywords whose value has schemas by names that the author of the schema chose.
_BY_NAME = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_NUMBER_TYPES = frozenset({"integer", "number"})
_LOWER_LIMITS = frozenset({"exclusiveMinimum", "minimum"})
_UPPER_LIMITS = frozenset({"exclusiveMaximum", "maximum"})
_NUMBER_LIMITS = _LOWER_LIMITS | _UPPER_LIMITS
# A schema with these says itself which numbers there are.
_DATA_LIMITS = frozenset({"const", "enum"})
_MAX_NUMBER = 10**15 - 1
# The smallest step that the grammar libraries can count in.
_STEP = 1e-10
# With these an object may have properties that are described elsewhere.
_COMBINING = ("$dynamicRef", "$ref", "allOf", "anyOf", "oneOf")


@dataclass(frozen=True, slots=True)
class HeldSchema:
    """A schema that engines can hold, and what of the original one is not in it."""

    schema: Mapping[str, Any]
    left_out: tuple[str, ...]


def find_held_schema(schema: Mapping[str, Any]) -> HeldSchema:
    """Return the part of a schema that engines can hold.

    An object with `properties` and without `additionalProperties` is closed, as llama.cpp and
    xgrammar do: a small model would add properties without end. Not where schemas are combined,
    whose properties may belong to one object. For the same reason a number has at most 15 digits
    before its point, unless the schema has limits beyond that, and ten after it if it cannot be
    negative; and the numbers in times and durations end.
    """
    left_out: dict[str, None] = {}
    is_closed = not _has_keyword(schema, "allOf")
    return HeldSchema(_keep_held(schema, left_out, is_closed=is_closed), tuple(left_out))


def _keep_held(
    schema: Mapping[str, Any], left_out: dict[str, None], *, is_closed: bool
) -> dict[str, Any]:
    held: dict[str, Any] = {}
    for key, value in schema.items():
        if unheld := _describe_unheld(key, value, schema):
            left_out[unheld] = None
        elif key == "format" and value in _ENDING_FORMATS and "pattern" not in schema:
            held["pattern"] = _ENDING_FORMATS[value]
        elif key in _DATA:
            held[key] = value
        elif key in _BY_NAME and isinstance(value, Mapping):
            held[key] = {
                name: _keep_part(part, left_out, is_closed=is_closed)
                for name, part in value.items()
            }
        else:
            held[key] = _keep_part(value, left_out, is_closed=is_closed)
    _limit_digits(held)
    if is_closed and isinstance(held.get("properties"), Mapping):
        if held.keys().isdisjoint((*_COMBINING, "patternProperties")):
            held.setdefault("additionalProperties", False)
    return held


def _describe_unheld(key: str, value: Any, schema: Mapping[str, Any]) -> str:
    """Return a keyword that cannot be held, with its value if others can; "" if it can be held."""
    if key in _UNHELD_KEYWORDS or (key == "multipleOf" and _is_never_positive(schema)):
        return key
    if not isinstance(value, str):
        return ""
    is_unheld = (key == "format" and value not in HELD_FORMATS) or (
        key == "pattern" and _UNHELD_PATTERN.search(value)
    )
    return f"{key} {value[:40]}" if is_unheld else ""


def _is_never_positive(schema: Mapping[str, Any]) -> bool:
    """Return whether a number has no positive value: llama.cpp allows no negative multiples."""
    return any(
        isinstance(limit := schema.get(name), int | float) and limit <= 0 for name in _UPPER_LIMITS
    )


def _limit_digits(schema: dict[str, Any]) -> None:
    """Add the limits of numbers that a schema does not have."""
    types = schema.get("type")
    types = types if isinstance(types, list) else [types]
    if not _NUMBER_TYPES.intersection(map(str, types)) or not _DATA_LIMITS.isdisjoint(schema):
        return
    limits = [schema[name] for name in _NUMBER_LIMITS if isinstance(schema.get(name), int | float)]
    if any(abs(limit) > _MAX_NUMBER for limit in limits):
        return
    if schema.keys().isdisjoint(_LOWER_LIMITS):
        schema["minimum"] = -_MAX_NUMBER
    if schema.keys().isdisjoint(_UPPER_LIMITS):
        schema["maximum"] = _MAX_NUMBER
    # The copy of llguidance inside llama.cpp allows no negative multiples.
    lowest = max((schema[name] for name in _LOWER_LIMITS if name in schema), default=-1)
    # Between small limits there may be no multiple of it.
    is_wide = all(not limit or abs(limit) >= _STEP * 1_000 for limit in limits)
    if "number" in types and lowest >= 0 and is_wide:
        schema.setdefault("multipleOf", _STEP)


def _keep_part(part: Any, left_out: dict[str, None], *, is_closed: bool) -> Any:
    if isinstance(part, Mapping):
        return _keep_held(part, left_out, is_closed=is_closed)
    if isinstance(part, list):
        return [_keep_part(each, left_out, is_closed=is_closed) for each in part]
    return part


def _has_keyword(part: Any, keyword: str) -> bool:
    pending = [part]
    while pending:
        each = pending.pop()
        if isinstance(each, Mapping):
            if keyword in each:
                return True
            pending += each.values()
        elif isinstance(each, list):
            pending += each
    return False
