"""GBNF as llama.cpp's guide describes it becomes Lark with the same texts."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.schema.gbnf import convert_gbnf

_STRING = r'"\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\""'
CASES: list[tuple[str, list[str], list[str]]] = [
    (
        '# moves\nroot ::= (\n    # first\n    "1. " move\n    ([1-9] [0-9]? ". " move)+\n)\n'
        'move ::= (pawn | castle) [+#]?\npawn ::= [a-h] [1-8]\ncastle ::= "O-O" "-O"?',
        ["1. e42. O-O-O+"],
        ["1. e4", "1. e92. e4"],
    ),
    (f"root ::= {_STRING}", ['"a\\n\\u00e9 é"'], ['"a\n"', '"\\x"']),
    (r'root ::= "\x41\u00e9" [\U0001F600-\U0001F64F]{1,2} "\u0022"', ['Aé😀😀"'], ["Aé", 'Aéx"']),
    (
        'root ::= start |\n  UPPER-CASE\nstart ::= "a"\nUPPER-CASE ::= "C"',
        ["a", "C"],
        ["c"],
    ),
    ('root ::= "start" . "<think>" # <think>\n', ["start!<think>"], ["start<think>"]),
    ("root ::= [ぁ-ゟ]+ ws\nws ::= | [ \\t]", ["ひらがな", "ひ "], ["a"]),
    ('root ::= ("- " [^\\r\\n\\x85\\u2028]+ "\\n")+', ["- a\n- b\n"], ["- a\u2028\n", "a"]),
]


def _allows(grammar: str, text: str) -> bool:
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(("grammar", "texts", "others"), CASES)
def test_grammar_allows_the_same_texts(grammar: str, texts: list[str], others: list[str]) -> None:
    converted = convert_gbnf(grammar)
    assert [text for text in texts if not _allows(converted, text)] == []
    assert [text for text in others if _allows(converted, text)] == []


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("root ::= <think> .*", "tokens such as <think> are not supported"),
        ("root ::= !<[1000]>*", "tokens such as !<.1000.> are not supported"),
        ("root ::= missing", "Rule 'missing' not found"),
        ('word ::= "a"', "No 'root' rule found"),
        ("root ::= (", "it is no GBNF"),
    ],
)
def test_what_is_no_gbnf_has_a_reason(grammar: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert_gbnf(grammar)
