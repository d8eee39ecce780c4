"""`tools` and `tool_choice`: refused values, and the schema that constrains the engine (R39)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from engine.reply.reply_format import ToolForm
from handler.apis.core.call_runner import CallDefaults
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import OpenAIService
from handler.apis.openai.tools import read_tools
from handler.errors import InvalidRequest
from tests.unit.handler.conftest import PipelineFactory
from validation.rules import DEFAULT_RULES
from validation.rules_validator import RulesValidator

ROUTE = "/v1/chat/completions"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "time"}}
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER, TIME]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


def allowed_tools(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"tools": {}}, "tools must be an array of up to 1000 functions, got {}", "tools"),
        ({"tools": [WEATHER] * 1001}, "tools must be an array of up to 1000 functions", "tools"),
        ({"tools": [1]}, 'tools[0] must be an object with type "function"', "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name must be 1 to 128 letters, digits, _ and -",
            "tools",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]},
            "tools[0].function.parameters must be a JSON Schema, got 1",
            "tools",
        ),
        ({"tools": [TIME, TIME]}, "tools must have names of their own", "tools"),
        ({"tool_choice": "required"}, "tool_choice must come with tools", "tool_choice"),
        ({"tools": [TIME], "tool_choice": "some"}, "tool_choice must be", "tool_choice"),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice must be",
            "tool_choice",
        ),
        (
            {"tools": [TIME], "parallel_tool_calls": 1},
            "parallel_tool_calls must be true or false, got 1",
            "parallel_tool_calls",
        ),
    ],
)
def test_invalid_tools_are_refused(body: dict[str, Any], message: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_tools(body)
    assert raised.value.message.startswith(message)
    assert raised.value.param == param


def test_required_tool_is_a_schema() -> None:
    one = read_tools(BODY | {"tool_choice": {"type": "function", "function": {"name": "weather"}}})
    assert one.constraint is not None
    assert one.constraint.json_schema is not None
    assert one.constraint.json_schema["properties"] == {
        "name": {"const": "weather"},
        "arguments": CITY,
    }
    both = read_tools(BODY | {"tool_choice": "required"})
    assert both.constraint is not None
    assert both.constraint.json_schema is not None
    assert len(both.constraint.json_schema["anyOf"]) == 2
    assert read_tools(BODY).constraint is None
    assert read_tools(BODY | {"tool_choice": "none"}).definitions == ()


@pytest.mark.parametrize(
    ("choice", "offered", "constrains_calls"),
    [
        ("any", ["weather", "time"], True),
        (allowed_tools("auto", "time"), ["time"], False),
        (allowed_tools("required", "time", "weather"), ["weather", "time"], True),
    ],
)
def test_choice_of_allowed_tools(choice: Any, offered: list[str], constrains_calls: bool) -> None:
    tools = read_tools(BODY | {"tool_choice": choice})
    assert [tool["function"]["name"] for tool in tools.definitions] == offered
    assert (tools.constraint is not None) is constrains_calls


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (allowed_tools("none", "time"), "tool_choice.allowed_tools"),
        (allowed_tools("auto", "other"), "tool_choice"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
    ],
)
def test_wrong_choice_of_allowed_tools_is_refused(choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_tools(BODY | {"tool_choice": choice})
    assert raised.value.param == param


async def chunks_of(service: OpenAIService, body: dict[str, Any]) -> list[dict[str, Any]]:
    call = service.parse_call(ROUTE, body | {"stream": True})
    async with await service.open_stream(call) as running:
        text = b"".join([block async for block in stream_events(call, running)])
    lines = [line.removeprefix("data: ") for line in text.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_call_is_equal_streamed_and_not_streamed(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["Let me see. ", *CALL], "delay_ms": 1}))
    full = await service.complete(service.parse_call(ROUTE, BODY))
    ChatCompletion.model_validate(full, strict=True)
    [choice] = full["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    [called] = choice["message"]["tool_calls"]
    assert called["function"] == {"name": "weather", "arguments": '{"city": "Köln"}'}

    deltas = [chunk["choices"][0] for chunk in await chunks_of(service, BODY)]
    assert "".join(each["delta"].get("content") or "" for each in deltas) == "Let me see."
    start, *rest = [call for each in deltas for call in each["delta"].get("tool_calls", ())]
    assert start["function"] == {"name": "weather", "arguments": ""}
    # They arrive while the model writes them.
    assert len(rest) > 5
    arguments = "".join(part["function"]["arguments"] for part in rest)
    assert arguments == called["function"]["arguments"]
    assert {part["index"] for part in (start, *rest)} == {0}
    assert [each["finish_reason"] for each in deltas if each["finish_reason"]] == ["tool_calls"]


@pytest.mark.parametrize(("form", "is_call"), [(None, True), ("hermes", True), ("gemma4", False)])
async def test_only_the_form_of_the_setting_is_read(
    form: ToolForm | None, is_call: bool, pipeline_of: PipelineFactory
) -> None:
    service = OpenAIService(pipeline_of({"pieces": [CALL]}), CallDefaults(tool_form=form))
    full = await service.complete(service.parse_call(ROUTE, BODY))
    assert ("tool_calls" in full["choices"][0]["message"]) is is_call
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in await chunks_of(service, BODY)]
    assert finishes[-1] == ("tool_calls" if is_call else "stop")


async def test_prompt_contains_the_functions(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of())
    text = (await service.complete(service.parse_call(ROUTE, BODY)))["choices"][0]["message"][
        "content"
    ]
    assert '"name": "weather"' in text
    text = await service.complete(service.parse_call(ROUTE, BODY | {"tool_choice": "none"}))
    assert "weather" not in text["choices"][0]["message"]["content"]


@pytest.mark.parametrize("piece", ['{"name": "time", "arguments": {}}', "I will not."])
async def test_required_call_is_checked_without_a_grammar(
    piece: str, pipeline_of: PipelineFactory
) -> None:
    service = OpenAIService(
        pipeline_of({"pieces": [piece]}, validator=RulesValidator.from_file(DEFAULT_RULES))
    )
    body = BODY | {"tool_choice": "required", "temperature": 1}
    full = await service.complete(service.parse_call(ROUTE, body))
    [choice] = full["choices"]
    assert full["warnings"] == [
        "the engine cannot constrain its answers to a schema: they are checked against it"
    ]
    called = piece.startswith("{")
    assert (choice["finish_reason"] == "tool_calls") is called
    assert full["validation"]["valid"] is called
    # It is regenerated only once.
    assert ("regenerated" in full) is not called


async def test_reasoning_is_a_separate_field(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["<think>", "Hm", ".</th", "ink>\n\nYes"]}))
    body = {"messages": BODY["messages"]}
    [choice] = (await service.complete(service.parse_call(ROUTE, body)))["choices"]
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["content"] == "Yes"
    deltas = [chunk["choices"][0]["delta"] for chunk in await chunks_of(service, body)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes"


async def test_white_space_only_answer_is_content(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of({"pieces": [" ", "\n"]}))
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in await chunks_of(service, {"messages": BODY["messages"]})
    ]
    assert "".join(delta.get("content", "") for delta in deltas) == " \n"
