"""Grammars of clients, regular expressions and choices, in the form that the engines take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from engine.backends.llamacpp.grammar_check import GrammarCheck
from engine.errors import RequestRejected
from engine.prompts.reasoning import Thinking
from engine.schema.client_grammar import (
    LARK_HEADER,
    MAX_GRAMMAR_CHARS,
    build_choice_grammar,
    build_regex_grammar,
    check_grammar,
    has_token_ids,
    is_lark,
    prepare_grammar,
)
from engine.schema.schema_limits import MAX_LEVELS
from tests.unit.engine.schema.byte_vocabulary import Bytes


@pytest.fixture(scope="module")
def allows() -> Callable[[str, str], bool]:
    """Returns whether a grammar allows a text as a complete answer."""
    tokenizer = LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=257, eos_token=[256])

    def check(grammar: str, text: str) -> bool:
        rules = LLMatcher.grammar_from_lark(grammar.removeprefix(LARK_HEADER))
        matcher = LLMatcher(tokenizer, rules, limits=LLParserLimits(verbose_errors=False))
        assert not matcher.is_error(), matcher.get_error()
        tokens = list(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    return check


@pytest.mark.parametrize(
    ("regex", "texts", "others"),
    [
        (r"\d{3}-[a-f]+", ["123-abc"], ["12-abc", "123-", "123-abcg", "x123-a"]),
        (r"^\d+$", ["42"], ["42$", "^42", ""]),
        (r"a/b\$", ["a/b$"], ["a/b", "a/b\\$"]),
        (r"(yes|no)\n?", ["yes", "no\n"], ["yesno"]),
        ("[äöü]+ 😀", ["äü 😀"], ["a 😀"]),
        (r"https?://[a-z]+/x", ["http://a/x"], ["http:a/x"]),
    ],
)
def test_regex_must_match_the_complete_answer(
    regex: str, texts: list[str], others: list[str], allows: Callable[[str, str], bool]
) -> None:
    grammar = prepare_grammar(build_regex_grammar(regex))
    assert [text for text in texts if not allows(grammar, text)] == []
    assert [text for text in others if allows(grammar, text)] == []


def test_choice_holds_the_answer_to_one_of_the_texts(allows: Callable[[str, str], bool]) -> None:
    choices = ["yes", 'say "no"', "a/b | c", "zwölf\n", "日本"]
    grammar = prepare_grammar(build_choice_grammar(choices))
    assert all(allows(grammar, choice) for choice in choices)
    assert not any(allows(grammar, text) for text in ("", "ye", "yes ", "no", "a/b", "maybe"))


GBNF = 'root ::= number "-" number\nnumber ::= [0-9]+'
LARK = 'start: number "-" number\nnumber: /[0-9]+/'


@pytest.mark.parametrize("grammar", [GBNF, LARK, LARK_HEADER + LARK])
def test_grammars_of_both_notations_hold_the_answer(
    grammar: str, allows: Callable[[str, str], bool]
) -> None:
    prepared = prepare_grammar(grammar)
    assert prepared.startswith(LARK_HEADER)
    assert allows(prepared, "12-3")
    assert not allows(prepared, "12-")


@pytest.mark.parametrize(
    "grammar", [GBNF, LARK, build_regex_grammar(r"\d+-\d+"), build_choice_grammar(["1-2", "12-3"])]
)
def test_answer_begins_after_the_reasoning(
    grammar: str, allows: Callable[[str, str], bool]
) -> None:
    prepared = prepare_grammar(grammar, "open")
    assert allows(prepared, "Hm, 5-6?\n</think>\n\n12-3")
    assert not allows(prepared, "12-3")
    assert not allows(prepared, "Hm.</think>It is 12-3")


@pytest.mark.parametrize("thinking", ["none", "open", "optional"])
@pytest.mark.parametrize(
    "grammar", [GBNF, LARK, build_regex_grammar(r"\d+-\d+"), build_choice_grammar(["1-2", "12-3"])]
)
def test_end_token_may_follow_the_answer(grammar: str, thinking: Thinking) -> None:
    # The end token of the library is another one than that of the model.
    tokenizer = LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=257, eos_token=[256])
    before = "</think>" if thinking == "open" else ""
    for end_tokens, expected in (((), 0), ((0, 1), 1)):
        matcher = LLMatcher(tokenizer, prepare_grammar(grammar, thinking, end_tokens))
        assert not matcher.is_error(), matcher.get_error()
        matcher.consume_tokens(list(f"{before}12-3".encode()))
        assert matcher.validate_tokens([1]) == expected
        assert matcher.validate_tokens([2]) == 0


@pytest.mark.parametrize(
    ("grammar", "texts", "others"),
    [
        # The first rule refers to itself, and its name is in texts and expressions.
        ('start: "(" start ")" | "start:" /start/', ["(start:start)"], ["start", "(model_answer)"]),
        ('%llguidance {"no_forcing": true}\nstart: "a" b\nb: "b"', ["ab"], ["a"]),
        ('%llguidance {\n"no_forcing": true\n}\nstart: "a"', ["a"], ["b"]),
        ('// a "quoted\nstart: "a" b // and "more\nb: "b"', ["ab"], ["a"]),
        ('start: model_end model_answer\nmodel_end: "a"\nmodel_answer: "b"', ["ab"], ["a"]),
        ('start: my-start\nmy-start: "a" restart\nrestart: "b"', ["ab"], ["a"]),
        ("A: /[a-z]+/\n  start : A", ["a"], ["1"]),
    ],
)
def test_rules_of_a_client_keep_their_meaning(
    grammar: str, texts: list[str], others: list[str], allows: Callable[[str, str], bool]
) -> None:
    prepared = prepare_grammar(grammar, "optional", (0,))
    assert prepared.count("%llguidance") == 1
    for text in texts:
        assert allows(prepared, text)
    for text in others:
        assert not allows(prepared, text)


@pytest.mark.parametrize("rule", ["start", "?start", "!start", "  start", "start[temperature=0.5]"])
def test_first_rule_is_recognized_in_all_its_forms(rule: str) -> None:
    prepared = prepare_grammar(f'A: "a"\n{rule}: A+', "optional", (3, 4))
    assert "model_end: <[3,4]>" in prepared
    assert GrammarCheck().find_violation(prepared) is None


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ("start: A <[7]>", True),
        ("start: <[^1-9]>*", True),
        ('start: "<[7]>" /<[7]>/ // <[7]>', False),
        (LARK, False),
    ],
)
def test_token_ids_in_a_grammar_are_detected(grammar: str, expected: bool) -> None:
    assert has_token_ids(grammar) is expected


def test_gbnf_becomes_lark_with_one_header() -> None:
    prepared = prepare_grammar(GBNF)
    assert prepared.count("%llguidance") == 1
    assert "::=" not in prepared


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [(GBNF, False), (LARK, True), ("# words\nstart : A", True), ("this is none", False)],
)
def test_notation_of_a_grammar_is_recognised(grammar: str, expected: bool) -> None:
    assert is_lark(grammar) is expected


@pytest.mark.parametrize(
    "grammar",
    [
        build_regex_grammar("a("),
        build_regex_grammar("(?=a)b"),
        build_regex_grammar(r"\bfoo"),
        "start: missing",
        "start: /[/",
    ],
)
def test_grammar_that_cannot_be_followed_is_refused(grammar: str) -> None:
    with pytest.raises(RequestRejected, match=r"^grammar: it cannot be followed: ") as raised:
        prepare_grammar(grammar)
    assert raised.value.details["param"] == "grammar"
    assert len(raised.value.message) < 400
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a"{2000000000}', "must repeat its parts at most 10000 times"),
        ('root ::= ("a"{1,200}){1,200}', "must repeat its parts at most 10000 times"),
        ("root ::= " + "(" * (MAX_LEVELS + 1), f"must be nested at most {MAX_LEVELS} deep"),
        ("x" * (MAX_GRAMMAR_CHARS + 1), f"must have at most {MAX_GRAMMAR_CHARS} characters"),
    ],
    ids=["repetition", "nested repetition", "groups", "length"],
)
def test_check_grammar_refuses_grammars_that_grow_too_large(grammar: str, message: str) -> None:
    with pytest.raises(RequestRejected, match=message):
        check_grammar(grammar)


def test_check_grammar_ignores_brackets_in_quotes() -> None:
    check_grammar("root ::= " + '"(" ' * (2 * MAX_LEVELS) + '("a" | "b"){1,100}')
