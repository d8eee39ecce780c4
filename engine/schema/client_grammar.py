"""Grammars of answers that are no JSON: a client's own, a regular expression, or a choice.

The engines take a grammar as text. Clients write it in GBNF, llama.cpp's notation, which xgrammar's
EBNF resembles, or in Lark, which llguidance reads. Regular expressions and choices become Lark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from textwrap import shorten

from engine.errors import RequestRejected
from engine.prompts.reasoning import THINK_CLOSE
from engine.schema.grammar_cost import MAX_REPETITIONS, count_repetitions

MAX_GRAMMAR_CHARS = 100_000
# Levels of groups, or of a schema and of references that follow each other. llguidance recurses,
# and some 1,600 levels overflow a stack of 8 MB, which ends the process.
MAX_LEVELS = 400
# Some 3,000 fields of a schema. A larger grammar takes seconds to compile, during which no abort is
# possible.
MAX_GRAMMAR_SYMBOLS = 20_000
LARK_HEADER = "%llguidance {}\n"
_LARK_START = re.compile(r"^start\s*:", re.MULTILINE)
_MAX_REASON_CHARS = 300
# Rules of clients' own grammars hardly have these names.
_ANSWER_ONLY = "start: model_answer"
# Any text up to the first closing mark, and then the answer.
_ANSWER_AFTER_REASONING = rf"""start: model_thoughts /\s{{0,4}}/ model_answer
model_thoughts[suffix="{THINK_CLOSE}"]: /(.|\n)*/"""


def format_start(*, thinking: bool) -> str:
    """Return the start of a Lark grammar whose rule `model_answer` is the answer.

    With `thinking` the prompt ends inside the model's reasoning, and the answer begins after it.
    """
    return f"{LARK_HEADER}{_ANSWER_AFTER_REASONING if thinking else _ANSWER_ONLY}\n"


def build_regex_grammar(regex: str) -> str:
    """Return the grammar of an answer that matches a regular expression as a whole."""
    from llguidance import LLMatcher

    # The whole answer has to match, so anchors at the ends change nothing.
    pattern = regex.removeprefix("^")
    if pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = pattern[:-1]
    [part] = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
    return f"{LARK_HEADER}{part['lark_grammar']}\n"


def build_choice_grammar(choices: Sequence[str]) -> str:
    """Return the grammar of an answer that is one of several texts."""
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return f"{LARK_HEADER}start: {alternatives}\n"


def build_ban_grammar(words: Sequence[str]) -> str:
    """Return the grammar of an answer that contains none of several texts."""
    alternatives = " | ".join(json.dumps(word, ensure_ascii=False) for word in words)
    return (
        f"{LARK_HEADER}start: CLEAN_TEXT\n"
        "ANYTHING: /(?s:.*)/\n"
        f"CLEAN_TEXT: ANYTHING & ~(ANYTHING ({alternatives}) ANYTHING)\n"
    )


def is_lark(grammar: str) -> bool:
    """Return whether a grammar is written in Lark and not in GBNF."""
    return grammar.startswith("%llguidance") or (
        "::=" not in grammar and _LARK_START.search(grammar) is not None
    )


def prepare_grammar(grammar: str, *, thinking: bool, as_lark: bool) -> str:
    """Return a grammar as the engine needs it, with the header of Lark if it is that.

    `as_lark` translates GBNF too. So does `thinking`, with which the answer begins after the
    model's reasoning.

    Raises:
        RequestRejected: it is too large or no grammar; the message has the reason.
    """
    check_grammar(grammar)
    if not is_lark(grammar):
        if not (as_lark or thinking):
            return grammar
        grammar = _convert_gbnf(grammar)
    elif not grammar.startswith("%llguidance"):
        grammar = LARK_HEADER + grammar
    if (violation := _find_violation(grammar)) is not None:
        raise RequestRejected(f"grammar: it cannot be followed: {violation}", param="grammar")
    if not thinking:
        return grammar
    rules = _LARK_START.sub("model_answer:", grammar.removeprefix(LARK_HEADER), count=1)
    return format_start(thinking=True) + rules


def check_grammar(grammar: str) -> None:
    """Refuse a grammar that is too large or too deeply nested for a library.

    Raises:
        RequestRejected: it exceeds a limit, which the message names.
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
    open_groups = deepest = 0
    for each in re.finditer(r'"(?:\\.|[^"\\])*"?|[()]', grammar):
        open_groups += {"(": 1, ")": -1}.get(each[0], 0)
        deepest = max(deepest, open_groups)
    if deepest > MAX_LEVELS:
        raise RequestRejected(
            f"grammar: its groups must be nested at most {MAX_LEVELS} deep, got {deepest}",
            param="grammar",
        )


def _convert_gbnf(grammar: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(grammar))
    except Exception as error:
        # The converter raises a plain `Exception` for a missing rule.
        reason = shorten(str(error), _MAX_REASON_CHARS)
        raise RequestRejected(f"grammar: it is no GBNF: {reason}", param="grammar") from error


def _find_violation(grammar: str) -> str | None:
    """Return why llguidance cannot follow a Lark grammar; None if it can."""
    # Imported here, because it is large and few requests need it.
    from llguidance import LLMatcher, LLParserLimits

    rules = grammar.removeprefix(LARK_HEADER)
    limits = LLParserLimits(verbose_errors=False, max_grammar_size=MAX_GRAMMAR_SYMBOLS)
    has_failed, messages = LLMatcher.validate_grammar_with_warnings(
        LLMatcher.grammar_from_lark(rules), limits=limits
    )
    return shorten(messages[0], _MAX_REASON_CHARS) if has_failed else None
