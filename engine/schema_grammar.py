"""JSON Schemas as what answers can be held to, in the words of llguidance, which engines take."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from engine.errors import RequestRejected
from engine.reasoning import THINK_CLOSE
from engine.schema_cost import MAX_REPETITIONS, count_repetitions, find_cost_violation, resolve_ref

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# Some 3,000 fields: more than that takes seconds to make, in which nothing can be aborted.
MAX_SYMBOLS = 20_000

# Of what is nested, and of what is referred to one after the other. llguidance goes down by calls:
# some 1,600 on a thread of 8 MB are too many, which is the end of the process.
MAX_LEVELS = 400

MAX_GRAMMAR_CHARS = 100_000
_MAX_WHY = 300
# JSON on one line, as most tools write it. With white space left to the model, a small one can go
# on with it for ever, and what is left to no one costs no look at the model.
_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # As pydantic writes unions; to hold an answer to exactly one shape is more than a mask can.
    "coerce_one_of": True,
}
_AT_ONCE = "start: answer"
# To the first mark, for which nothing is forbidden.
_AFTER_THOUGHTS = rf"""start: thoughts /\s{{0,4}}/ answer
thoughts[suffix="{THINK_CLOSE}"]: /(.|\n)*/"""


def build_grammar(schema: Mapping[str, Any], *, thinking: bool = False) -> str:
    """Return the grammar of an answer that is JSON of a schema.

    With `thinking` the model has been left in its thoughts, and the answer begins where it ends
    them.

    Raises:
        RequestRejected: no answer can be held to it.
    """
    if (why := find_schema_violation(schema)) is not None:
        raise RequestRejected(
            f"json_schema: answers cannot be held to it: {why}", param="json_schema"
        )
    return format_grammar(schema, thinking=thinking)


def format_grammar(schema: Mapping[str, Any], *, thinking: bool = False) -> str:
    """Return the grammar of a schema as text, without looking at the schema."""
    with_options = json.dumps({**schema, "x-guidance": _OPTIONS})
    start = _AFTER_THOUGHTS if thinking else _AT_ONCE
    return f"%llguidance {{}}\n{start}\nanswer: %json {with_options}\n"


def check_grammar(grammar: str) -> None:
    """Refuse a GBNF grammar that a library would write out as too much, or follow too deep.

    Raises:
        RequestRejected: naming what there is too much of.
    """
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise RequestRejected(
            f"grammar: it must have at most {MAX_GRAMMAR_CHARS} characters, got {len(grammar)}",
            param="grammar",
        )
    if (count := count_repetitions(grammar)) > MAX_REPETITIONS:
        raise RequestRejected(
            f"grammar: it must repeat its parts at most {MAX_REPETITIONS} times, nested counts "
            f"multiplied, got {count}",
            param="grammar",
        )
    # A reader of grammars calls itself for each group.
    open_groups = deepest = 0
    for each in re.finditer(r'"(?:\\.|[^"\\])*"?|[()]', grammar):
        open_groups += {"(": 1, ")": -1}.get(each[0], 0)
        deepest = max(deepest, open_groups)
    if deepest > MAX_LEVELS:
        raise RequestRejected(
            f"grammar: its groups must be nested at most {MAX_LEVELS} deep, got {deepest}",
            param="grammar",
        )


def find_schema_violation(schema: Mapping[str, Any]) -> str | None:
    """Return why no answer can be held to a schema, None where it can.

    The first time it takes a millisecond, and a second for a schema that is just too large, without
    the interpreter's lock.
    """
    # In this order: only a schema that is not too deep and not too costly may reach the library.
    return _too_deep(schema) or find_cost_violation(schema) or _why_not(json.dumps(schema))


# A batch has the same one in every line.
@lru_cache(maxsize=64)
def _why_not(schema: str) -> str | None:
    # A library of its own size, which few requests need.
    from llguidance import LLMatcher, LLParserLimits

    try:
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)
    except ValueError as error:
        # It reads 128 levels.
        return _short(str(error), _MAX_WHY)
    limits = LLParserLimits(verbose_errors=False, max_grammar_size=MAX_SYMBOLS)
    failed, said = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    return _short(said[0], _MAX_WHY) if failed else None


def _short(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _too_deep(schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with how deep a schema is, counting all that it refers to."""
    levels, pending = 0, ["#"]
    for ref in pending:
        if not re.match("#(/|$)", ref):
            return f"a $ref must be within the schema, as #/$defs/…, not {_short(ref, 60)}"
        height, refs = _height(resolve_ref(schema, ref))
        levels += height
        if levels > MAX_LEVELS:
            return f"it has more than {MAX_LEVELS} levels, with what it refers to"
        pending += refs - set(pending)
    return None


def _height(part: Any) -> tuple[int, set[str]]:
    """Return how many levels a part has, and what it refers to."""
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
