"""Constraints: enforced by the engine, checked afterwards, and reported to the client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest

from engine import Capabilities
from engine.reply.reply import ToolCall
from handler.apis.core.best_of import build_requests
from handler.apis.core.call_runner import CallDefaults
from handler.apis.messages.request import read_request as read_messages_request
from handler.apis.ollama.request import read_chat as read_ollama_chat
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.apis.responses.request import read_request as read_responses_request
from handler.errors import InvalidRequest
from handler.generation.held_constraint import check_free_calls, check_instead, hold_with
from handler.input.request import TextRequest, parse_job
from tests.unit.handler.apis.served_model import TINY
from validation.issues import Issue

USER = [{"role": "user", "content": "hi"}]
DEFAULTS = CallDefaults()
ABLE = Capabilities(
    backend="llamacpp", model="m", context_length=99, json_schema=True, grammar=True
)
UNABLE = Capabilities(backend="scripted", model="m", context_length=99)
URL = {"type": "object", "properties": {"url": {"type": "string", "format": "uri"}}}
APIS = ("openai", "messages", "responses", "ollama", "job")


def read(api: str, schema: dict[str, Any]) -> TextRequest:
    """Return the request of an answer that is held to a schema."""
    named = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    form = {"type": "json_schema", "name": "a", "schema": schema}
    if api == "job":
        params = {"response_format": named}
        request = parse_job({"input": {"prompt": "hi", "sampling_params": params}})
        assert isinstance(request, TextRequest)
        return request
    if api == "openai":
        call = OpenAICall(CHAT, {"messages": USER, "response_format": named}, "tiny").parsed
    elif api == "messages":
        body = {"messages": USER, "output_config": {"format": form}}
        call = read_messages_request(body, TINY, DEFAULTS)
    elif api == "responses":
        body = {"input": "hi", "text": {"format": form}}
        call = read_responses_request(body, (), "", TINY, DEFAULTS).call
    else:
        ollama = read_ollama_chat({"messages": USER, "format": schema}, TINY, DEFAULTS).call
        assert ollama is not None
        call = ollama
    (request,) = build_requests(call)
    return request


@pytest.mark.parametrize("api", APIS)
def test_supported_part_of_a_schema_is_held_and_all_of_it_is_checked(api: str) -> None:
    request = hold_with(ABLE, read(api, URL))
    held = request.generation.sampling.json_schema
    assert held is not None
    assert held["properties"] == {"url": {"type": "string"}}
    assert held["additionalProperties"] is False
    [warning] = request.warnings
    assert "format uri" in warning
    assert warning.endswith("they are checked afterwards")
    assert request.validation
    assert request.options.regenerate
    assert request.options.checks["json_schema"].find_issues('{"url": "no url"}')


@pytest.mark.parametrize("api", APIS)
def test_fully_held_schema_causes_no_check(api: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    before = read(api, schema)
    request = hold_with(ABLE, before)
    assert (request.warnings, request.options) == (before.warnings, before.options)


@pytest.mark.parametrize("api", APIS)
def test_engine_without_schemas_checks_afterwards(api: str) -> None:
    request = hold_with(UNABLE, read(api, URL))
    assert request.generation.sampling.json_schema is None
    assert "json_schema" in request.options.checks
    assert "cannot constrain its answers to a schema" in request.warnings[-1]


@pytest.mark.parametrize("api", APIS)
def test_pattern_that_cannot_be_checked_causes_a_warning(api: str) -> None:
    # As pydantic writes Decimal.
    schema = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}
    request = hold_with(ABLE, read(api, {"type": "object", "properties": {"price": schema}}))
    held = request.generation.sampling.json_schema
    assert held is not None
    assert held["properties"] == {"price": {"type": "string"}}
    [warning] = request.warnings
    assert "and they are not checked" in warning


@pytest.mark.parametrize("api", APIS)
def test_unsupported_keyword_is_removed_and_an_invalid_schema_refused(api: str) -> None:
    request = hold_with(ABLE, read(api, {"type": "array", "items": {"minContains": 2}}))
    assert request.generation.sampling.json_schema == {"type": "array", "items": {}}
    with pytest.raises(InvalidRequest):
        hold_with(ABLE, read(api, {"type": "null_"}))


def test_arguments_of_a_call_are_an_object() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}}
    body = {"messages": USER, "tools": [tool], "tool_choice": "required"}
    schema = OpenAICall(CHAT, body, "tiny").parsed.parameters.sampling.json_schema
    assert schema is not None
    assert schema["properties"]["arguments"]["type"] == "object"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ANSWER = {
    "type": "object",
    "properties": {"child": {"$ref": "#/$defs/Child"}},
    "required": ["child"],
    "$defs": {"Child": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


def read_with_tools(api: str, **extra: Any) -> TextRequest:
    """Return the request of a call with a function and a schema of the answer."""
    named = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}}
    form = {"type": "json_schema", "name": "a", "schema": ANSWER}
    body: dict[str, Any]
    function: Any = TOOL["function"]
    if api == "openai":
        body = {"messages": USER, "response_format": named, "tools": [TOOL], **extra}
        call = OpenAICall(CHAT, body, "tiny").parsed
    elif api == "messages":
        tool = {"name": "f", "input_schema": {"type": "object"}}
        body = {"messages": USER, "output_config": {"format": form}, "tools": [tool], **extra}
        call = read_messages_request(body, TINY, DEFAULTS)
    elif api == "responses":
        tools = [{"type": "function", **function}]
        body = {"input": "hi", "text": {"format": form}, "tools": tools, **extra}
        call = read_responses_request(body, (), "", TINY, DEFAULTS).call
    else:
        body = {"messages": USER, "format": ANSWER, "tools": [TOOL], **extra}
        ollama = read_ollama_chat(body, TINY, DEFAULTS).call
        assert ollama is not None
        call = ollama
    (request,) = build_requests(call)
    return request


@pytest.mark.parametrize("api", [api for api in APIS if api != "job"])
def test_answer_with_a_schema_and_tools_is_a_call_or_the_schema(api: str) -> None:
    request = hold_with(ABLE, read_with_tools(api))
    schema = request.generation.sampling.json_schema
    assert schema is not None
    call = {"name": "f", "arguments": {}}
    answers: list[Any] = [call, {"child": {"a": 1}}]
    for answer in answers:
        jsonschema_rs.validate(dict(schema), answer)
    others: list[Any] = [{"name": "g", "arguments": {}}, {"child": 1}, [], [call], {}]
    for answer in others:
        assert not jsonschema_rs.is_valid(dict(schema), answer)
    assert request.reply_format is not None
    assert request.reply_format.constrains_calls


def test_answer_that_must_be_a_call_has_no_other_form() -> None:
    request = hold_with(ABLE, read_with_tools("openai", tool_choice="required"))
    schema = dict(request.generation.sampling.json_schema or {})
    assert jsonschema_rs.is_valid(schema, {"name": "f", "arguments": {}})
    assert not jsonschema_rs.is_valid(schema, {"child": {"a": 1}})
    call: dict[str, Any] = {"name": "f", "arguments": {}}
    for several in (
        read_with_tools("openai", tool_choice="required", parallel_tool_calls=True),
        read_with_tools("responses", tool_choice="required", parallel_tool_calls=True),
        read_with_tools(
            "messages", tool_choice={"type": "any", "disable_parallel_tool_use": False}
        ),
    ):
        schema = dict(hold_with(ABLE, several).generation.sampling.json_schema or {})
        assert jsonschema_rs.is_valid(schema, [call, call])
        assert not jsonschema_rs.is_valid(schema, [])
        assert not jsonschema_rs.is_valid(schema, [call] * 9)
    named = {"type": "function", "function": {"name": "f"}}
    for single in (
        read_with_tools("openai", tool_choice="required"),
        read_with_tools("openai", tool_choice="required", parallel_tool_calls=False),
        read_with_tools("openai", tool_choice=named, parallel_tool_calls=True),
        read_with_tools("messages", tool_choice={"type": "tool", "name": "f"}),
        read_with_tools("responses", tool_choice={"type": "function", "name": "f"}),
    ):
        schema = dict(hold_with(ABLE, single).generation.sampling.json_schema or {})
        assert jsonschema_rs.is_valid(schema, {"name": "f", "arguments": {}})
        assert not jsonschema_rs.is_valid(schema, [{"name": "f", "arguments": {}}])


def test_tools_with_a_regular_expression_cause_a_warning() -> None:
    body = {"messages": USER, "tools": [TOOL], "guided_regex": "a+"}
    parsed = OpenAICall(CHAT, body, "tiny").parsed
    assert "tools cannot be called, because guided_regex holds the answer" in parsed.warnings


HERMES = replace(ABLE, call_form="hermes")
TOOL_APIS = ("openai", "messages", "responses")
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Lima"]}},
    "required": ["city"],
}


def read_tools(
    api: str, schema: dict[str, Any] = CITY, strict: Any = True, **body: Any
) -> TextRequest:
    """Return the request of a chat with a function, which the model may call."""
    function = {"name": "weather", "strict": strict}
    if api == "openai":
        tools: list[Any] = [{"type": "function", "function": {**function, "parameters": schema}}]
        call = OpenAICall(CHAT, {"messages": USER, "tools": tools, **body}, "tiny").parsed
    elif api == "messages":
        tools = [{**function, "input_schema": schema}]
        call = read_messages_request({"messages": USER, "tools": tools, **body}, TINY, DEFAULTS)
    else:
        tools = [{**function, "type": "function", "parameters": schema}]
        response = {"input": "hi", "tools": tools, **body}
        call = read_responses_request(response, (), "", TINY, DEFAULTS).call
    (request,) = build_requests(call)
    return request


LOOP = {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}


def find_call_issues(request: TextRequest, arguments: str) -> tuple[Issue, ...]:
    check = request.options.call_check
    assert check is not None
    return check.find_issues(f'{{"name": "weather", "arguments": {arguments}}}')


@pytest.mark.parametrize("api", TOOL_APIS)
def test_strict_calls_are_held_when_they_begin(api: str) -> None:
    before = read_tools(api)
    request = hold_with(HERMES, before)
    grammar = request.generation.sampling.grammar
    assert grammar is not None
    assert "<tool_call>" in grammar
    assert "Lima" in grammar
    assert (request.warnings, request.options) == (before.warnings, before.options)
    assert request.reply_format is not None
    assert not request.reply_format.constrains_calls


@pytest.mark.parametrize("strict", [False, None])
@pytest.mark.parametrize("api", TOOL_APIS)
def test_calls_that_are_not_strict_are_free(api: str, strict: bool | None) -> None:
    before = read_tools(api, strict=strict)
    assert hold_with(HERMES, before) == before
    assert before.constraint is None


@pytest.mark.parametrize("api", TOOL_APIS)
def test_strict_that_is_no_flag_is_refused(api: str) -> None:
    with pytest.raises(InvalidRequest, match=r"tools\[0\].*strict must be true or false, got "):
        read_tools(api, strict="yes")


@pytest.mark.parametrize("api", TOOL_APIS)
@pytest.mark.parametrize(
    ("capabilities", "reason"),
    [
        (UNABLE, "(the scripted engine has no grammars)"),
        (ABLE, "(there is no grammar for the model's form of calls)"),
        (replace(ABLE, call_form="mistral"), "(there is no grammar for calls of the form mistral)"),
    ],
)
def test_strict_calls_that_no_grammar_holds_are_checked(
    api: str, capabilities: Capabilities, reason: str
) -> None:
    request = hold_with(capabilities, read_tools(api))
    assert request.generation.sampling.grammar is None
    [warning] = request.warnings
    assert reason in warning
    assert warning.endswith("their arguments are checked afterwards")
    assert request.validation
    assert not find_call_issues(request, '{"city": "Oslo"}')
    [issue] = find_call_issues(request, '{"city": "Rome"}')
    assert issue.message.startswith("In the call of weather: ")


def test_part_of_a_strict_schema_that_is_not_held_is_checked() -> None:
    schema = {"type": "object", "properties": {"url": {"type": "string", "format": "uri"}}}
    request = hold_with(HERMES, read_tools("openai", schema))
    assert request.generation.sampling.grammar is not None
    [warning] = request.warnings
    assert "(not held: format uri)" in warning
    assert find_call_issues(request, '{"url": "no url"}')


def test_strict_schema_that_cannot_be_checked_is_a_warning() -> None:
    request = hold_with(UNABLE, read_tools("openai", {"type": "object", "required": 5}))
    [warning] = request.warnings
    assert "and they are not checked: tools: " in warning


def test_refused_grammar_of_strict_calls_becomes_a_check() -> None:
    request = read_tools("openai")
    assert request.constraint is not None
    checked = check_instead(request, request.constraint, "no reason")
    [warning] = checked.warnings
    assert "(no reason)" in warning
    assert find_call_issues(checked, "{}")


def test_strict_with_bad_words_is_ignored_with_a_warning() -> None:
    request = read_tools("openai", bad_words=["no"])
    assert "strict of tools was ignored, because bad_words holds the answer" in request.warnings
    assert request.constraint is not None
    assert request.constraint.bad_words == ("no",)


def test_strict_call_with_a_schema_is_held_from_the_start() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}}
    request = hold_with(HERMES, read_tools("openai", response_format=form))
    assert request.generation.sampling.json_schema is not None
    assert request.reply_format is not None
    assert request.reply_format.constrains_calls


def test_only_one_call_is_held_where_several_are_not_allowed() -> None:
    several = hold_with(HERMES, read_tools("openai")).generation.sampling.grammar
    one = hold_with(HERMES, read_tools("openai", parallel_tool_calls=False))
    assert several is not None
    assert one.generation.sampling.grammar == several.replace("call)* TEXT", "call)? TEXT")


@pytest.mark.parametrize(
    ("arguments", "is_checked"),
    [
        ('{"city": "Oslo"}', False),
        ('{"city": "Rome"}', True),
        ("{}", True),
        ('{"city": "Ro', False),
    ],
)
@pytest.mark.parametrize("api", TOOL_APIS)
def test_call_that_no_grammar_held_is_checked(api: str, arguments: str, is_checked: bool) -> None:
    held = hold_with(HERMES, read_tools(api))
    calls = (ToolCall("1", "weather", arguments), ToolCall("2", "other", '{"city": 5}'))
    request = check_free_calls(held, calls)
    if not is_checked:
        assert request is held
        return
    [warning] = request.warnings
    assert "(the answer has one that does not fit)" in warning
    assert request.validation
    assert find_call_issues(request, arguments)
    assert check_free_calls(request, calls) is request


def test_calls_that_are_not_strict_need_no_check() -> None:
    free = hold_with(HERMES, read_tools("openai", strict=False))
    assert check_free_calls(free, [ToolCall("1", "weather", "{}")]) is free
    uncheckable = hold_with(HERMES, read_tools("openai", {"$ref": "#/$defs/A", "$defs": LOOP}))
    assert check_free_calls(uncheckable, [ToolCall("1", "weather", "{}")]) is uncheckable
