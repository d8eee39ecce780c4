"""Grammars that the grammar library inside llama.cpp refuses, checked with that library."""

from __future__ import annotations

import ctypes
from typing import get_args

import pytest

from engine.backends.llamacpp import grammar_check
from engine.backends.llamacpp.grammar_check import GrammarCheck
from engine.prompts.reasoning import Thinking
from engine.schema.client_grammar import build_ban_grammar, build_choice_grammar
from engine.schema.grammar import format_grammar
from engine.schema.held_schema import HELD_FORMATS


def test_grammars_that_the_library_takes_have_no_violation() -> None:
    check = GrammarCheck()
    assert check.find_violation(build_choice_grammar(["a", "b"])) is None
    assert check.find_violation(build_ban_grammar(["a"])) is None
    for thinking in get_args(Thinking):
        assert check.find_violation(format_grammar({"type": "object"}, thinking)) is None


@pytest.mark.parametrize("form", sorted(HELD_FORMATS))
def test_formats_that_count_as_held_are_known_to_the_library(form: str) -> None:
    # The answer would be free text without any sign of it.
    grammar = format_grammar({"type": "string", "format": form})
    assert GrammarCheck().find_violation(grammar) is None


def test_format_that_the_library_does_not_know_is_a_violation() -> None:
    grammar = format_grammar({"type": "object", "properties": {"a": {"format": "uri"}}})
    violation = GrammarCheck().find_violation(grammar)
    assert violation is not None
    assert "Unknown format: uri" in violation
    assert "\n" not in violation
    assert "unknown name" in str(GrammarCheck().find_violation("%llguidance {}\nstart: other\n"))


OBJECT = format_grammar({"type": "object", "properties": {"ä": {"type": "integer"}}})


@pytest.mark.parametrize(
    ("grammar", "answer", "is_complete", "expected"),
    [
        (OBJECT, '{"ä": 5}', True, None),
        (OBJECT, '{"ä": ', False, None),
        (OBJECT, '{"ä": ', True, 6),
        (OBJECT, '{"ä": five}', True, 6),
        (OBJECT, '{"ä": 5}!', False, 8),
        (OBJECT, "", False, None),
        (build_ban_grammar(["no"]), "so", True, None),
        (build_ban_grammar(["no"]), "so no", True, 4),
        (format_grammar({"type": "integer"}, "open"), "Hm, 😀.</think>5", True, None),
        (format_grammar({"type": "integer"}, "open"), "Hm, 😀.</think>x", True, 14),
    ],
)
def test_break_is_where_an_answer_leaves_its_grammar(
    grammar: str, answer: str, is_complete: bool, expected: int | None
) -> None:
    check = GrammarCheck()
    assert check.find_break(grammar, answer, is_complete=is_complete) == expected


def test_answer_that_the_library_does_not_follow_any_further_is_a_break() -> None:
    # No number is negative and a multiple for it.
    grammar = format_grammar({"type": "number", "maximum": -5, "multipleOf": 0.5})
    assert GrammarCheck().find_break(grammar, "-5.5", is_complete=True) is not None


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_unusable_library_reports_no_violation(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(path: str) -> None:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", fail)
    check = grammar_check.GrammarCheck()
    assert check.find_violation("anything") is None
    assert check.find_break("anything", "a", is_complete=True) is None
