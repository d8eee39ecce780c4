"""Schemas and functions on a model: the grammar allows only output that parses.

A model with random weights knows neither JSON nor functions, so only the constraint makes its
answers valid (R39). At a high temperature an answer may reach `max_tokens` inside a
string or a number; every finished answer must parse.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletion, ChatCompletionMessageFunctionToolCall

from engine import BackendConfig, Engine, EngineConfig
from engine.reply.parser import read_reply
from engine.reply.reply_format import ReplyFormat, ToolForm
from engine.schema import held_schema
from engine.schema.call_grammar import build_call_grammar
from engine.schema.client_grammar import LARK_HEADER
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import OpenAIService
from handler.pipeline import Pipeline
from tests.models.llama import END
from validation.rules import DEFAULT_RULES
from validation.rules_validator import RulesValidator

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUTE = "/v1/chat/completions"
MANNERS: list[dict[str, Any]] = [
    {"temperature": 0},
    *({"temperature": 1.3, "seed": seed} for seed in range(3)),
]
COLOUR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "sure": {"type": "boolean"},
    },
    "required": ["colour", "count", "sure"],
    "additionalProperties": False,
}
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Lima"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
ARGUMENTS = {"weather": CITY, "clock": {"type": "object"}}
MAX_TOKENS = 300


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(model_path: Path) -> AsyncIterator[OpenAIService]:
    options = {"model_path": str(model_path), "model_name": "tiny", "context_length": 1024}
    engine = Engine(EngineConfig(backend=BackendConfig.from_wire("llamacpp", options)))
    await engine.ready()
    yield OpenAIService(Pipeline(engine, "tiny", RulesValidator.from_file(DEFAULT_RULES)))
    await engine.close()


async def complete(service: OpenAIService, content: str, **options: Any) -> ChatCompletion:
    body = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": MAX_TOKENS,
        **options,
    }
    async with asyncio.timeout(50):
        answer = await service.complete(service.parse_call(ROUTE, body))
    assert "warnings" not in answer
    return ChatCompletion.model_validate(answer)


async def test_members_of_formats_that_cannot_be_held_are_named(service: OpenAIService) -> None:
    # As pydantic and zod write addresses, secrets and decimals.
    members = {
        "site": {"type": "string", "format": "uri", "maxLength": 20},
        "secret": {"type": "string", "format": "password", "maxLength": 20},
        "price": {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "maxLength": 9},
        "id": {"type": "string", "format": "uuid"},
    }
    schema = {"type": "object", "properties": members, "required": list(members)}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "A site."}], "response_format": form}
    async with asyncio.timeout(50):
        call = service.parse_call(ROUTE, body | {"temperature": 0, "max_tokens": MAX_TOKENS})
        answer = await service.complete(call)
    value = json.loads(answer["choices"][0]["message"]["content"])
    assert value.keys() == members.keys()
    assert len(value["id"]) == 36
    [warning] = answer["warnings"]
    for name in ("format uri", "format password", "pattern ^(?!"):
        assert name in warning


def is_finished(reason: str | None, expected: str, manner: dict[str, Any]) -> bool:
    """Return whether an answer finished before `max_tokens`; a greedy one must."""
    if manner["temperature"] == 0:
        assert reason == expected
    assert reason in {expected, "length"}
    return reason == expected


@pytest.mark.long_except("manner2")
@pytest.mark.parametrize("manner", MANNERS)
async def test_answer_fits_the_schema(service: OpenAIService, manner: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}}
    answer = await complete(service, "Which colour?", response_format=form, **manner)
    [choice] = answer.choices
    if is_finished(choice.finish_reason, "stop", manner):
        jsonschema_rs.validate(COLOUR, json.loads(choice.message.content or ""))


@pytest.mark.long
@pytest.mark.parametrize("manner", MANNERS)
async def test_answer_is_an_object(service: OpenAIService, manner: dict[str, Any]) -> None:
    form = {"type": "json_object"}
    answer = await complete(service, "A short JSON object.", response_format=form, **manner)
    [choice] = answer.choices
    content = choice.message.content or ""
    assert content.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(content), dict)


@pytest.mark.long_except("choice1-manner3")
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_function_is_called_with_arguments_that_parse(
    service: OpenAIService, choice: Any, manner: dict[str, Any]
) -> None:
    options = {"tools": [WEATHER, TIME], "tool_choice": choice, **manner}
    answer = await complete(service, "Is it raining in Oslo?", **options)
    [message_choice] = answer.choices
    if not is_finished(message_choice.finish_reason, "tool_calls", manner):
        return
    calls = message_choice.message.tool_calls or []
    assert calls
    for call in calls:
        assert call.type == "function"
        if choice != "required":
            assert call.function.name == "weather"
        jsonschema_rs.validate(ARGUMENTS[call.function.name], json.loads(call.function.arguments))


@pytest.mark.long
@pytest.mark.parametrize("manner", MANNERS)
async def test_streamed_call_is_complete_at_its_end(
    service: OpenAIService, manner: dict[str, Any]
) -> None:
    body = {
        "messages": [{"role": "user", "content": "Is it raining in Lima?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "stream": True,
        "max_tokens": MAX_TOKENS,
        **manner,
    }
    call = service.parse_call(ROUTE, body)
    name, arguments = "", ""
    reasons: set[str | None] = set()
    async with asyncio.timeout(50), await service.open_stream(call) as running:
        async for block in stream_events(call, running):
            for line in block.decode().splitlines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    reasons.add(choice["finish_reason"])
                    for tool_call in choice["delta"].get("tool_calls", ()):
                        name += tool_call["function"].get("name") or ""
                        arguments += tool_call["function"].get("arguments") or ""
    [reason] = reasons - {None}
    if is_finished(reason, "tool_calls", manner):
        assert name == "weather"
        jsonschema_rs.validate(CITY, json.loads(arguments))


async def test_no_function_is_called_where_none_may_be(service: OpenAIService) -> None:
    answer = await complete(service, "Hello", tools=[WEATHER], tool_choice="none", max_tokens=20)
    assert not answer.choices[0].message.tool_calls


# As pydantic writes the schema of a model with another one in it, and of a recursive one.
TRIP: dict[str, Any] = {
    "$defs": {
        "City": {
            "type": "object",
            "properties": {"name": {"enum": ["Oslo", "Lima"]}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
    "type": "object",
    "properties": {"start": {"$ref": "#/$defs/City"}, "end": {"$ref": "#/$defs/City"}},
    "required": ["start", "end"],
    "additionalProperties": False,
}
CHAIN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "value": {"enum": [1, 2]},
        "next": {"$ref": "#"},
    },
    "required": ["value"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("others", [[], [TIME]], ids=["alone", "one-of-two"])
async def test_forced_call_has_parameters_with_references(
    service: OpenAIService, others: list[Any]
) -> None:
    tool = {"type": "function", "function": {"name": "plan", "parameters": TRIP}}
    answer = await complete(
        service,
        "Plan a trip from Oslo to Lima.",
        tools=[*others, tool],
        tool_choice="required",
        temperature=0,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    if call.function.name == "plan":
        assert jsonschema_rs.is_valid(TRIP, json.loads(call.function.arguments))
    else:
        assert others


async def test_forced_call_has_recursive_parameters(service: OpenAIService) -> None:
    tool = {"type": "function", "function": {"name": "plan", "parameters": CHAIN}}
    # The model nests until it is cut off; each level has what the schema asks for.
    answer = await complete(
        service, "Count.", tools=[tool], tool_choice="required", temperature=0, max_tokens=300
    )
    levels = re.split(r'"next": *', answer.model_dump_json().replace('\\"', '"'))[1:-1]
    assert len(levels) >= 2
    assert all(re.fullmatch(r'\{ *"value": *[12], *', level) for level in levels), levels


async def test_grammar_that_llama_cpp_refuses_is_a_check_and_a_warning(
    service: OpenAIService, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the library that tries schemas knew a format that llama.cpp's own does not know.
    monkeypatch.setattr(held_schema, "HELD_FORMATS", held_schema.HELD_FORMATS | {"uri"})
    schema = {
        "type": "object",
        "properties": {"url": {"type": "string", "format": "uri"}},
        "required": ["url"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "hi"}], "response_format": form}
    async with asyncio.timeout(50):
        answer = await service.complete(service.parse_call(ROUTE, body | {"max_tokens": 9}))
    assert "Unknown format: uri" in answer["warnings"][0]
    assert answer["warnings"][0].endswith("they are checked against it")


async def test_tools_and_a_schema_give_a_call_or_an_answer_of_the_schema(
    service: OpenAIService,
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}}
    kinds = set()
    for seed, question in enumerate(["Which colour?", "How is the weather in Oslo?"] * 3):
        answer = await complete(
            service,
            question,
            tools=[WEATHER],
            response_format=form,
            seed=seed,
            logit_bias={},
            temperature=1.5,
        )
        [choice] = answer.choices
        for call in choice.message.tool_calls or ():
            assert isinstance(call, ChatCompletionMessageFunctionToolCall)
            kinds.add("call")
            if choice.finish_reason == "tool_calls":
                jsonschema_rs.validate(CITY, json.loads(call.function.arguments))
        if choice.finish_reason == "stop":
            kinds.add("answer")
            jsonschema_rs.validate(COLOUR, json.loads(choice.message.content or ""))
    assert kinds


@pytest.mark.parametrize(
    "number",
    [
        {"type": "number", "exclusiveMaximum": 0},
        {"type": "number", "maximum": -5, "multipleOf": 0.5},
        {"type": "number", "minimum": -9, "maximum": -1},
    ],
)
async def test_negative_numbers_are_held(service: OpenAIService, number: dict[str, Any]) -> None:
    # The library inside llama.cpp gave up where a number was both negative and a multiple.
    schema = {"type": "object", "properties": {"a": number}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "hi"}], "response_format": form}
    async with asyncio.timeout(50):
        call = service.parse_call(ROUTE, body | {"temperature": 0, "max_tokens": 60})
        answer = await service.complete(call)
    content = answer["choices"][0]["message"]["content"]
    assert content.startswith('{"a": -')


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_that_leaves_its_grammar_is_checked(
    service: OpenAIService, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    # As if the library could follow them.
    monkeypatch.setattr(held_schema, "_is_never_positive", lambda schema: False)
    number = {"type": "number", "maximum": -5, "multipleOf": 0.5}
    schema = {"type": "object", "properties": {"a": number}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "response_format": form,
        "temperature": 0,
        "max_tokens": 30,
    }
    call = service.parse_call(ROUTE, body | {"stream": stream})
    async with asyncio.timeout(50):
        if stream:
            async with await service.open_stream(call) as running:
                blocks = b"".join([block async for block in stream_events(call, running)])
            [line] = [line for line in blocks.decode().splitlines() if '"warnings"' in line]
            answer = json.loads(line.removeprefix("data: "))
        else:
            answer = await service.complete(call)
    [warning] = answer["warnings"]
    assert re.search(r"\(its library could not follow the grammar after \d+ characters\)", warning)
    assert answer["validation"]["valid"] is False


@pytest.mark.parametrize(
    "constraint",
    [
        {"bad_words": ["dog"]},
        {"guided_regex": "(?s:.*)"},
        {"grammar": 'start: "a"*'},
        {"tools": [{"type": "function", "function": {**WEATHER["function"], "strict": True}}]},
    ],
)
async def test_answer_ends_where_its_grammar_could_go_on(
    service: OpenAIService, constraint: dict[str, Any]
) -> None:
    # The end of this model's turns is not the end token that the grammar library knows.
    options = {"logit_bias": {str(END): 100}, "temperature": 0, "max_tokens": 20, **constraint}
    answer = await complete(service, "hi", **options)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1


@pytest.mark.parametrize("form", ["hermes", "llama", "qwen_xml"])
async def test_call_that_begins_follows_its_strict_schema(
    service: OpenAIService, form: ToolForm
) -> None:
    held = build_call_grammar(ARGUMENTS, form, several=False)
    assert held is not None
    # This model begins no call by itself, so the grammar has no other answer here.
    _, _, rules = held.text.removeprefix(LARK_HEADER).partition("\n")
    begun = "start: body" if form == "llama" else 'start: "<tool_call>" call'
    grammar = f"{begun}\n{rules}"
    answer = await complete(service, "Rain?", grammar=grammar, temperature=0)
    reply_format = ReplyFormat(functions=ARGUMENTS, tool_form=form)
    content = answer.choices[0].message.content or ""
    reply = read_reply(content, reply_format, starts_in_reasoning=False)
    [call] = reply.calls
    arguments = call.read_arguments()
    assert arguments is not None
    jsonschema_rs.validate(ARGUMENTS[call.name], arguments)
