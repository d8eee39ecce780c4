"""Turns JSON Schemas into llguidance grammars, and refuses schemas that are too large."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from engine.errors import RequestRejected
from engine.schema.client_grammar import MAX_GRAMMAR_SYMBOLS, MAX_LEVELS, format_start
from engine.schema.grammar_cost import find_cost_violation, resolve_ref

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# llguidance makes 64-bit numbers of integers and of limits. It refuses a limit below this one, and
# for a single allowed value below it recurses without end, which ends the process.
MIN_NUMBER = 1024 - 2**63

_MAX_REASON_CHARS = 300
# JSON on one line, as most tools write it. A small model could emit optional white space
# without end, and text without a choice needs no pass of the model.
_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # pydantic writes unions as `oneOf`. A token mask cannot enforce exactly one alternative, so
    # `oneOf` is treated as `anyOf`.
    "coerce_one_of": True,
}


def build_grammar(schema: Mapping[str, Any], *, thinking: bool = False) -> str:
    """Return the grammar of an answer that is JSON of a schema.

    With `thinking` the prompt ends inside the model's reasoning, and the answer begins after it.

    Raises:
        RequestRejected: the engine cannot enforce the schema.
    """
    if (reason := find_schema_violation(schema)) is not None:
        raise RequestRejected(
            f"json_schema: answers cannot be held to it: {reason}", param="json_schema"
        )
    return format_grammar(schema, thinking=thinking)


def format_grammar(schema: Mapping[str, Any], *, thinking: bool = False) -> str:
    """Return the grammar of a schema as text, without checking the schema."""
    schema_json = json.dumps({**schema, "x-guidance": _OPTIONS})
    return f"{format_start(thinking=thinking)}model_answer: %json {schema_json}\n"


def find_schema_violation(schema: Mapping[str, Any]) -> str | None:
    """Return why an engine cannot enforce a schema; None if it can.

    The first call for a schema takes a millisecond, or up to a second for one that is just too
    large, without holding the interpreter's lock.
    """
    # In this order: only a schema that the library survives may reach it.
    return (
        _find_depth_violation(schema)
        or find_cost_violation(schema)
        or find_number_violation(schema)
        or _find_library_violation(json.dumps(schema))
    )


# Cached, because a batch often has the same schema in every line.
@lru_cache(maxsize=64)
def _find_library_violation(schema: str) -> str | None:
    # Imported here, because it is large and few requests need it.
    from llguidance import LLMatcher, LLParserLimits

    try:
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)
    except ValueError as error:
        # It also refuses JSON with more than 128 levels.
        return _shorten(str(error), _MAX_REASON_CHARS)
    limits = LLParserLimits(verbose_errors=False, max_grammar_size=MAX_GRAMMAR_SYMBOLS)
    has_failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    return _shorten(messages[0], _MAX_REASON_CHARS) if has_failed else None


def _shorten(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _find_depth_violation(schema: Mapping[str, Any]) -> str | None:
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


def find_number_violation(schema: Mapping[str, Any]) -> str | None:
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
