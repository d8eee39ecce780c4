"""Grammars of answers that are no JSON: a client's own, a regular expression, or a choice.

The engines take a grammar as text. Clients write it in GBNF, llama.cpp's notation, which xgrammar's
EBNF resembles, or in Lark, which llguidance reads. Regular expressions and choices become Lark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from engine.errors import RequestRejected
from engine.prompts.reasoning import THINK_CLOSE, THINK_OPEN, Thinking
from engine.schema.grammar_cost import MAX_REPETITIONS, count_repetitions
from engine.schema.schema_limits import MAX_LEVELS
from engine.schema.trial import try_grammar

MAX_GRAMMAR_CHARS = 100_000
LARK_HEADER = "%llguidance {}\n"
# The first rule may be indented, and have a modifier and attributes.
_LARK_START = re.compile(r"^[ \t]*[?!]?start[ \t]*(?:\[[^\]\n]*\])?[ \t]*:(?!:)", re.MULTILINE)
# Any text up to the first closing mark.
_THOUGHTS = rf'model_thoughts[suffix="{THINK_CLOSE}"]: /(.|\n)*/'
_STARTS: Mapping[Thinking, str] = {
    "none": "",
    "open": r"model_thoughts /\s{0,4}/ ",
    "optional": rf'("{THINK_OPEN}" model_thoughts /\s{{0,4}}/)? ',
}
# Texts, comments and expressions of Lark, in which no rule is named.
_NO_NAMES = r'"(?:\\.|[^"\\])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/'
# A client's own grammar gets other names than those of the rules here.
_NEW_NAMES = {
    "start": "model_answer",
    **{f"model_{name}": f"client_model_{name}" for name in ("answer", "end", "thoughts")},
}
_TEXT_OR_NAME = re.compile(rf"{_NO_NAMES}|(?<![\w-])(?:{'|'.join(_NEW_NAMES)})(?![\w-])")
_TEXT_OR_TOKEN_ID = re.compile(rf"{_NO_NAMES}|<\[")


def format_start(thinking: Thinking, end_tokens: Sequence[int] = ()) -> str:
    """Return the first rules of a Lark grammar whose rule `model_answer` is the answer.

    llama.cpp's copy of the library knows one end token, which is not always the one that the model
    ends its answers with. Where the grammar could go on, such an answer would never end. So the
    ids in `end_tokens` may follow the answer too.
    """
    start = f"start: {_STARTS[thinking]}model_answer"
    rules = [] if thinking == "none" else [_THOUGHTS]
    if end_tokens:
        start += " model_end?"
        rules.append(f"model_end: <[{','.join(map(str, end_tokens))}]>")
    return "\n".join([start, *rules, ""])


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


def prepare_grammar(
    grammar: str, thinking: Thinking = "none", end_tokens: Sequence[int] = ()
) -> str:
    """Return a grammar as the engines need it: in Lark, with its header.

    `thinking` is what comes before it, and `end_tokens` may follow it.

    llama.cpp reads GBNF too, but a chain of 4,000 rules ends its process, and some of 100 bytes
    keep it busy for a minute. So both notations take the one way whose cost is bounded.

    Raises:
        RequestRejected: it is too large or no grammar; the message has the reason.
        BackendFailed: it could not be tried.
    """
    check_grammar(grammar)
    trial = try_grammar("lark" if is_lark(grammar) else "gbnf", grammar.removeprefix(LARK_HEADER))
    if trial.violation is not None:
        raise RequestRejected(f"grammar: it cannot be followed: {trial.violation}", param="grammar")
    header, rules = _split_header(trial.grammar)
    if (thinking == "none" and not end_tokens) or _LARK_START.search(rules) is None:
        return header + rules
    answer = _TEXT_OR_NAME.sub(lambda each: _NEW_NAMES.get(each[0], each[0]), rules)
    return header + format_start(thinking, end_tokens) + answer


def has_token_ids(grammar: str) -> bool:
    """Return whether a Lark grammar refers to tokens by their ids, such as `<[7]>`."""
    return any(each[0] == "<[" for each in _TEXT_OR_TOKEN_ID.finditer(grammar))


def _split_header(grammar: str) -> tuple[str, str]:
    """Return the header of a Lark grammar, which may have options of a client, and its rules."""
    grammar = grammar.removeprefix(LARK_HEADER).lstrip()
    if not grammar.startswith("%llguidance"):
        return LARK_HEADER, grammar
    # The options may have several lines.
    _, end = json.JSONDecoder().raw_decode(grammar, grammar.index("{"))
    return f"{grammar[:end]}\n", grammar[end:]


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
