"""ContentCheck applies a check to the content or the tool calls of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from handler.openai.content_check import ContentCheck
from handler.openai.service import OpenAIService
from handler.openai.tools import Tools, read_tools
from tests.unit.handler.conftest import PipelineFactory
from validation.options.schema import SchemaCheck
from validation.rules import DEFAULT_RULES
from validation.rules_validator import RulesValidator

ROUTE = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"schema": NUMBER}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
TOOLS = read_tools({"tools": [WEATHER], "tool_choice": "required"})
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ODD_CALL = CALL.replace("city", "town")

FITS = [
    '{"a": 1}',
    '<think>\nIs it {"a": 2}?\n</think>\n\n{"a": 1}',
    # The template opened them.
    'Is it {"a": "x"}?</think>{"a": 1}',
    '<think>Hm.</think>```json\n{"a": 1}\n```',
    # No thoughts but a word of the answer's.
    '{"a": 1, "b": "</think>"}',
]
DOES_NOT = [
    '{"a": "x"}',
    "It is 1.",
    '<think>Hm.</think>{"a": "x"}',
    '<think>{"a": 1}',
    'Hm.</think>It is {"a": 1}.',
]


@pytest.mark.parametrize("text", FITS)
def test_content_that_matches_has_no_issues(text: str) -> None:
    assert ContentCheck(SchemaCheck(NUMBER), Tools()).find_issues(text) == ()


@pytest.mark.parametrize("text", DOES_NOT)
def test_content_that_does_not_match_has_issues(text: str) -> None:
    assert ContentCheck(SchemaCheck(NUMBER), Tools()).find_issues(text)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (CALL, True),
        (f"<think>Where?</think>\n{CALL}", True),
        (f"Where?</think>\n\n{CALL}", True),
        (f"Let me see. {CALL}", True),
        (f"{CALL}\n{CALL}", True),
        ('[TOOL_CALLS][{"name": "weather", "parameters": {"city": "Oslo"}}]', True),
        (ODD_CALL, False),
        (f"{CALL}\n{ODD_CALL}", False),
        (CALL.replace("weather", "other"), False),
        ("I will not.", False),
    ],
)
def test_matching_tool_calls_have_no_issues(text: str, fits: bool) -> None:
    # R39
    schema = TOOLS.schema
    assert schema is not None
    assert (ContentCheck(SchemaCheck(schema), TOOLS).find_issues(text) == ()) is fits


def test_issue_of_several_calls_is_returned_once() -> None:
    schema = TOOLS.schema
    assert schema is not None
    judged = ContentCheck(SchemaCheck(schema), TOOLS)
    assert judged.find_issues(f"{ODD_CALL}\n{ODD_CALL}") == judged.find_issues(ODD_CALL)


async def test_completions_are_checked_unparsed(
    pipeline_of: PipelineFactory,
) -> None:
    # A completion has no thoughts.
    pipeline = pipeline_of(
        {"pieces": ['Hm</think>{"a": 1}']}, validator=RulesValidator.from_file(DEFAULT_RULES)
    )
    asked = {"prompt": "x", "enable_validation": True, "validation": {"json_schema": NUMBER}}
    service = OpenAIService(pipeline)
    full = await service.complete(service.parse_call("/v1/completions", asked))
    assert not full["validation"]["valid"]


@pytest.mark.parametrize(
    ("pieces", "asked"),
    [
        (["<think>", "Hm", "</think>\n\n", '{"a": 1}'], {"response_format": FORMAT}),
        (["Hm.</think>\n\n", '{"a": 1}'], {"response_format": FORMAT}),
        (["<think>Hm</think>", CALL], {"tools": [WEATHER], "tool_choice": "required"}),
        (["<think>Hm</think>", '{"a": 1}'], {"validation": {"json_schema": NUMBER}}),
    ],
)
async def test_correct_answer_is_not_regenerated(
    pieces: list[str], asked: dict[str, Any], pipeline_of: PipelineFactory
) -> None:
    # R39: on an engine that cannot be held to anything.
    able = {"starts_in_reasoning": not pieces[0].startswith("<think>")}
    pipeline = pipeline_of(
        {"pieces": pieces}, validator=RulesValidator.from_file(DEFAULT_RULES), capabilities=able
    )
    service = OpenAIService(pipeline)
    body = {"messages": MESSAGES, "temperature": 1, "enable_validation": True, **asked}
    full = await service.complete(service.parse_call(ROUTE, body))
    assert full["validation"]["valid"]
    assert "regenerated" not in full
    message = full["choices"][0]["message"]
    assert message["reasoning_content"].startswith("Hm")
    assert message["content"] == '{"a": 1}' or message["tool_calls"]


@pytest.mark.parametrize(
    "asked", [{}, {"chat_template_kwargs": {"enable_thinking": True}}], ids=["always", "asked"]
)
async def test_constrained_answer_follows_the_reasoning(
    asked: dict[str, Any], pipeline_of: PipelineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handler.openai.service.starts_in_reasoning", lambda prompt: True)
    able = {"json_schema": True, "starts_in_reasoning": True}
    service = OpenAIService(
        pipeline_of({"pieces": ["Hm.</think>\n\n", '{"a": 1}']}, capabilities=able)
    )
    body = {"messages": MESSAGES, "response_format": FORMAT, **asked}
    full = await service.complete(service.parse_call(ROUTE, body))
    assert "warnings" not in full
    assert full["choices"][0]["message"]["content"] == '{"a": 1}'
    assert full["choices"][0]["message"]["reasoning_content"] == "Hm."


@pytest.mark.parametrize("text", ['{"a": [1, 2]}', '{"a": [2, 2]}'])
async def test_schema_without_a_grammar_is_checked_afterwards(
    text: str, pipeline_of: PipelineFactory
) -> None:
    # R39, R16: an engine that holds to others.
    unique = {"type": "object", "properties": {"a": {"uniqueItems": True}}}
    pipeline = pipeline_of(
        {"pieces": [text]},
        validator=RulesValidator.from_file(DEFAULT_RULES),
        capabilities={"json_schema": True},
    )
    service = OpenAIService(pipeline)
    wanted = {"type": "json_schema", "json_schema": {"schema": unique}}
    body = {"messages": MESSAGES, "temperature": 1, "response_format": wanted}
    full = await service.complete(service.parse_call(ROUTE, body))
    assert full["warnings"] == [
        "the engine cannot constrain its answers to this schema "
        '(Unimplemented keys: ["uniqueItems"]): '
        "they are checked against it"
    ]
    assert full["validation"]["valid"] is (text == '{"a": [1, 2]}')
