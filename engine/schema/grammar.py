"""Turns JSON Schemas into llguidance grammars, and refuses schemas that are too large."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import RequestRejected
from engine.prompts.reasoning import Thinking
from engine.schema.client_grammar import LARK_HEADER, format_start
from engine.schema.trial import try_grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# JSON on one line, as most tools write it. A small model could emit optional white space
# without end, and text without a choice needs no pass of the model.
SCHEMA_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # pydantic writes unions as `oneOf`. A token mask cannot enforce exactly one alternative, so
    # `oneOf` is treated as `anyOf`.
    "coerce_one_of": True,
}


def build_grammar(
    schema: Mapping[str, Any], thinking: Thinking = "none", end_tokens: Sequence[int] = ()
) -> str:
    """Return the grammar of an answer that is JSON of a schema.

    `thinking` and `end_tokens` are as for `prepare_grammar`.

    Raises:
        RequestRejected: the engine cannot enforce the schema.
    """
    if (reason := find_schema_violation(schema)) is not None:
        raise RequestRejected(
            f"json_schema: answers cannot be held to it: {reason}", param="json_schema"
        )
    return format_grammar(schema, thinking, end_tokens)


def format_grammar(
    schema: Mapping[str, Any], thinking: Thinking = "none", end_tokens: Sequence[int] = ()
) -> str:
    """Return the grammar of a schema as text, without checking the schema."""
    schema_json = json.dumps({**schema, "x-guidance": SCHEMA_OPTIONS})
    start = format_start(thinking, end_tokens)
    return f"{LARK_HEADER}{start}model_answer: %json {schema_json}\n"


def find_schema_violation(schema: Mapping[str, Any]) -> str | None:
    """Return why an engine cannot enforce a schema; None if it can.

    The first call for a schema waits for its trial, a millisecond or up to a second for one that is
    just too large. Raises BackendFailed if there can be no trial.
    """
    return try_grammar("schema", json.dumps(schema)).violation
