"""JSON Schemas as what answers can be held to, in the words of llguidance, which engines take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from engine.errors import RequestRejected

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# Some 3,000 fields: more than that takes seconds to make, in which nothing can be aborted.
MAX_SYMBOLS = 20_000

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
_AFTER_THOUGHTS = r"""start: thoughts /\s{0,4}/ answer
thoughts[suffix="</think>"]: /(.|\n)*/"""


def grammar_of(schema: Mapping[str, Any], *, thinking: bool = False) -> str:
    """Return the grammar of an answer that is JSON of a schema.

    With `thinking` the model has been left in its thoughts, and the answer begins where it ends
    them.

    Raises:
        RequestRejected: no answer can be held to it.
    """
    if (why := why_not(schema)) is not None:
        raise RequestRejected(
            f"json_schema: answers cannot be held to it: {why}", param="json_schema"
        )
    told = json.dumps({**schema, "x-guidance": _OPTIONS})
    start = _AFTER_THOUGHTS if thinking else _AT_ONCE
    return f"%llguidance {{}}\n{start}\nanswer: %json {told}\n"


def why_not(schema: Mapping[str, Any]) -> str | None:
    """Return why no answer can be held to a schema, None where it can.

    It takes a millisecond, and a second for a schema that is just too large, without the
    interpreter's lock.
    """
    # A library of its own size, which few requests need.
    from llguidance import LLMatcher, LLParserLimits

    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_OPTIONS)
    limits = LLParserLimits(verbose_errors=False, max_grammar_size=MAX_SYMBOLS)
    failed, said = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    return shorten(said[0], _MAX_WHY) if failed else None
