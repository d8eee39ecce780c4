"""Calls follow the schemas of their functions once a model begins one; other texts are free."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from engine.backends.llamacpp.grammar_check import GrammarCheck
from engine.reply.parser import read_reply
from engine.reply.reply_format import ReplyFormat, ToolForm
from engine.schema.call_grammar import build_call_grammar
from engine.schema.client_grammar import prepare_grammar
from tests.unit.engine.schema.byte_vocabulary import Bytes

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "title": "City"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["c", "f"]},
        "sure": {"$ref": "#/$defs/Sure", "description": "whether it is sure"},
        "hour": {"anyOf": [{"type": "integer", "maximum": 23}, {"type": "null"}]},
    },
    "required": ["city", "days"],
    "$defs": {"Sure": {"type": "boolean"}},
}
FUNCTIONS: dict[str, Any] = {"weather": WEATHER, "wind": {}}


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=257, eos_token=[256])


def follow(tokenizer: LLTokenizer, grammar: str, text: str) -> tuple[int, bool]:
    """Return how many bytes of a text a grammar allows, and whether it may end after them."""
    matcher = LLMatcher(tokenizer, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    count = matcher.validate_tokens(tokens)
    matcher.consume_tokens(tokens[:count])
    return count, matcher.is_accepting()


def build(form: ToolForm, functions: dict[str, Any] = FUNCTIONS, *, several: bool = True) -> str:
    grammar = build_call_grammar(functions, form, several=several)
    assert grammar is not None
    return prepare_grammar(grammar.text)


HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
WIND = '<tool_call>{"name": "wind", "arguments": {"a": [1]}}</tool_call>'
LLAMA = '{"name": "weather", "parameters": {"city": "Oslo", "days": 3}}'
XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n by <night>\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n<parameter=unit>\nc\n</parameter>\n"
    "<parameter=sure>\ntrue\n</parameter>\n<parameter=hour>\nnull\n</parameter>\n"
    "</function>\n</tool_call>"
)
TEXTS = ("", "Hello.", "a < b, tool_call>", '{"name": "John"}', "<tool_cal>", "ä 😀\n\n")


@pytest.mark.parametrize(
    ("form", "answers"),
    [
        ("hermes", (*TEXTS, LLAMA, HERMES, f"Wait. {HERMES}\n{WIND} Done.")),
        ("llama", (*TEXTS, LLAMA, f"\n {LLAMA}", f"It is {LLAMA[:30]}", HERMES)),
        (
            "qwen_xml",
            (
                *TEXTS,
                LLAMA,
                f"Wait.\n{XML}",
                "<tool_call>\n<function=wind>\n</function></tool_call>",
            ),
        ),
    ],
)
def test_texts_and_calls_of_the_schemas_are_allowed(
    form: ToolForm, answers: tuple[str, ...], tokenizer: LLTokenizer
) -> None:
    grammar = build(form)
    for answer in answers:
        assert follow(tokenizer, grammar, answer) == (len(answer.encode()), True), answer


@pytest.mark.parametrize(
    ("form", "answer", "end"),
    [
        ("hermes", HERMES.replace("3", '"3"'), '"days": '),
        ("hermes", HERMES.replace('"Oslo", ', '"Oslo"}'), '"Oslo"'),
        ("hermes", HERMES.replace("weather", "other"), '"name": "'),
        ("hermes", HERMES.replace(": {", ": ["), '"arguments": '),
        ("llama", LLAMA.replace('"Oslo"', "5"), '"city": '),
        ("llama", f" {LLAMA}".replace("parameters", "args"), '"weather", "'),
        ("qwen_xml", XML.replace("3", "three"), "<parameter=days>\n"),
        ("qwen_xml", XML.replace("\nc\n", "\nk\n"), "<parameter=unit>\n"),
        ("qwen_xml", XML.replace("parameter=days", "parameter=unit"), "<parameter="),
        ("qwen_xml", XML.replace("<function=weather", "<function=x"), "<function="),
    ],
)
def test_call_that_does_not_follow_its_schema_is_not_allowed(
    form: ToolForm, answer: str, end: str, tokenizer: LLTokenizer
) -> None:
    count, may_end = follow(tokenizer, build(form), answer)
    allowed = answer.encode()[:count].decode()
    assert not may_end
    assert end in allowed
    assert len(allowed.rpartition(end)[2]) <= 2


OPEN = {"properties": {"a": {"type": "integer"}}, "additionalProperties": True}
ROOT = {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"type": "integer"}}}}}


@pytest.mark.parametrize(
    ("schema", "texts", "others"),
    [
        # A function that is not strict takes any arguments.
        ({}, [{}, {"a": "x", "b": "1\n<2>"}], []),
        ({"type": "object"}, [{}, {"a": "x"}], []),
        ({"properties": {}}, [{}], [{"a": "1"}]),
        (OPEN, [{"a": "1"}, {"a": "1", "b": "x", "ab": "y"}, {"b": "x"}], [{"a": "x"}]),
        (ROOT, [{}, {"a": "1"}], [{"a": "x"}, {"b": "1"}]),
    ],
)
def test_parameters_that_a_schema_does_not_name_are_held_to_nothing(
    schema: dict[str, Any],
    texts: list[dict[str, str]],
    others: list[dict[str, str]],
    tokenizer: LLTokenizer,
) -> None:
    def write(values: dict[str, str]) -> str:
        parts = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        return f"<tool_call>\n<function=f>\n{''.join(parts)}</function>\n</tool_call>"

    grammar = build("qwen_xml", {"f": schema})
    assert GrammarCheck().find_violation(grammar) is None
    assert [text for text in texts if not follow(tokenizer, grammar, write(text))[1]] == []
    assert [text for text in others if follow(tokenizer, grammar, write(text))[1]] == []


def test_one_call_is_allowed_without_parallel_calls(tokenizer: LLTokenizer) -> None:
    grammar = build("hermes", several=False)
    assert follow(tokenizer, grammar, f"{HERMES} Done.")[1]
    count, _ = follow(tokenizer, grammar, f"{HERMES}{WIND}")
    assert count < len(f"{HERMES}<tool_call>")


@pytest.mark.parametrize(
    ("form", "answer"), [("hermes", HERMES), ("llama", LLAMA), ("qwen_xml", XML)]
)
def test_held_call_is_read_as_a_call(form: ToolForm, answer: str) -> None:
    reply_format = ReplyFormat(functions=FUNCTIONS, tool_form=form)
    [call] = read_reply(answer, reply_format, starts_in_reasoning=False).calls
    arguments = call.read_arguments()
    assert arguments is not None
    assert (call.name, arguments["days"]) == ("weather", 3)


@pytest.mark.parametrize("form", ["hermes", "llama", "qwen_xml"])
def test_library_of_llama_cpp_takes_the_grammars(form: ToolForm) -> None:
    assert GrammarCheck().find_violation(build(form)) is None


def test_other_forms_have_no_grammar() -> None:
    assert build_call_grammar(FUNCTIONS, "mistral", several=True) is None


LOOP = {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}}


@pytest.mark.parametrize(
    ("form", "schema", "left_out"),
    [
        ("hermes", {"properties": {"a": {"type": "string", "format": "uri"}}}, "format uri"),
        ("llama", {"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        # A text without quotes has no grammar here.
        ("qwen_xml", {"properties": {"a": {"type": "string", "maxLength": 3}}}, "the schema of a"),
        ("qwen_xml", {"properties": {"a": {"type": ["string", "null"]}}}, "the schema of a"),
        ("qwen_xml", {"properties": {"a": {"enum": [1, "b"]}}}, "the schema of a"),
        ("qwen_xml", {"properties": {"a": {"$ref": "#/$defs/A"}}, **LOOP}, "the schema of a"),
        ("qwen_xml", {"properties": {"a": {"$ref": "https://x/y"}}}, "the schema of a"),
        ("qwen_xml", {"allOf": [WEATHER]}, "the schema of f"),
        ("qwen_xml", {"required": ["a"]}, "the schema of f"),
        ("qwen_xml", {"additionalProperties": {"type": "integer"}}, "the schema of f"),
    ],
)
def test_what_is_not_held_is_named(form: ToolForm, schema: dict[str, Any], left_out: str) -> None:
    grammar = build_call_grammar({"f": schema}, form, several=True)
    assert grammar is not None
    assert grammar.left_out == (left_out,)
    assert GrammarCheck().find_violation(prepare_grammar(grammar.text)) is None
