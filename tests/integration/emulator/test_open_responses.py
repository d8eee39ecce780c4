"""The checks of Open Responses' compliance suite, and its schemas for responses and events.

The suite's seven requests, of the specification of 2026-04-24, are asked in our own words; the one
with an image is an error here, because the models read text only. The schemas below have what the
specification requires of each object.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server

CALL = '<tool_call>{"name": "get_weather", "arguments": {"location": "Oslo"}}</tool_call>'
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
TEXT, INTEGER, NUMBER, FLAG = (
    {"type": name} for name in ("string", "integer", "number", "boolean")
)


def required(**members: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(members), "properties": members}


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def kind(*names: str) -> dict[str, Any]:
    return {"enum": list(names)}


STATUS = kind("in_progress", "completed", "incomplete")
TEXT_PART = required(type=kind("output_text"), text=TEXT, annotations={"type": "array"})
REASONING_PART = required(type=kind("reasoning_text"), text=TEXT)
MESSAGE = required(
    type=kind("message"),
    id=TEXT,
    status=STATUS,
    role=kind("assistant"),
    content={"type": "array", "items": TEXT_PART},
)
FUNCTION_CALL = required(
    type=kind("function_call"), id=TEXT, call_id=TEXT, name=TEXT, arguments=TEXT, status=STATUS
)
# A model that was asked for encrypted reasoning has none: null would be no string.
REASONING = required(type=kind("reasoning"), id=TEXT, summary={"type": "array"})
REASONING["properties"]["encrypted_content"] = TEXT
ITEM = {"oneOf": [MESSAGE, FUNCTION_CALL, REASONING]}
ERROR = required(code=TEXT, message=TEXT)
USAGE = required(
    input_tokens=INTEGER,
    output_tokens=INTEGER,
    total_tokens=INTEGER,
    input_tokens_details=required(cached_tokens=INTEGER),
    output_tokens_details=required(reasoning_tokens=INTEGER),
)
TOOL = required(
    type=kind("function"),
    name=TEXT,
    description=or_null(TEXT),
    parameters=or_null({"type": "object"}),
    strict=or_null(FLAG),
)
RESPONSE = required(
    id=TEXT,
    object=kind("response"),
    created_at=INTEGER,
    completed_at=or_null(INTEGER),
    status=TEXT,
    incomplete_details=or_null(required(reason=TEXT)),
    model=TEXT,
    previous_response_id=or_null(TEXT),
    instructions=or_null(TEXT),
    output={"type": "array", "items": ITEM},
    error=or_null(ERROR),
    tools={"type": "array", "items": TOOL},
    tool_choice=kind("none", "auto", "required"),
    truncation=kind("auto", "disabled"),
    parallel_tool_calls=FLAG,
    text=required(format=required(type=TEXT)),
    top_p=NUMBER,
    presence_penalty=NUMBER,
    frequency_penalty=NUMBER,
    top_logprobs=INTEGER,
    temperature=NUMBER,
    reasoning=or_null(required(effort={}, summary={})),
    usage=or_null(USAGE),
    max_output_tokens=or_null(INTEGER),
    max_tool_calls=or_null(INTEGER),
    store=FLAG,
    background=FLAG,
    service_tier=TEXT,
    metadata={},
    safety_identifier=or_null(TEXT),
    prompt_cache_key=or_null(TEXT),
)
_OF_RESPONSE = {"response": RESPONSE}
_OF_ITEM = {"output_index": INTEGER, "item": ITEM}
_OF_PART = {"item_id": TEXT, "output_index": INTEGER, "content_index": INTEGER}
# The members of each event beside its type and its number. The specification calls the events of
# reasoning response.reasoning.delta and .done; the clients of OpenAI read the names here.
EVENTS: dict[str, dict[str, Any]] = {
    **{
        f"response.{name}": _OF_RESPONSE
        for name in ("created", "queued", "in_progress", "completed", "failed", "incomplete")
    },
    "response.output_item.added": _OF_ITEM,
    "response.output_item.done": _OF_ITEM,
    "response.content_part.added": _OF_PART | {"part": {"oneOf": [TEXT_PART, REASONING_PART]}},
    "response.content_part.done": _OF_PART | {"part": {"oneOf": [TEXT_PART, REASONING_PART]}},
    "response.output_text.delta": _OF_PART | {"delta": TEXT},
    "response.output_text.done": _OF_PART | {"text": TEXT},
    "response.reasoning_text.delta": _OF_PART | {"delta": TEXT},
    "response.reasoning_text.done": _OF_PART | {"text": TEXT},
    "response.function_call_arguments.delta": {
        "item_id": TEXT,
        "output_index": INTEGER,
        "delta": TEXT,
    },
    "response.function_call_arguments.done": {
        "item_id": TEXT,
        "output_index": INTEGER,
        "arguments": TEXT,
    },
    # In the specification in an object, `error`, which makes OpenAI's clients raise.
    "error": {"code": TEXT, "message": TEXT, "param": or_null(TEXT)},
}


@pytest.fixture
async def server(serve: Serve, script: ScriptFactory) -> Server:
    pieces = [CALL[start : start + 6] for start in range(0, len(CALL), 6)]
    return await serve(
        script(
            {"when": "weather", "pieces": pieces},
            {"when": "puzzle", "pieces": ["<think>", "hm", "</think>", "42"]},
            {"when": "fail", "pieces": ["so far", {"error": "out of memory", "delay_ms": 20}]},
            {"when": "My name is Ada(.|\n)*Hello Ada(.|\n)*my name", "pieces": ["Ada"]},
            {"when": "pirate(.|\n)*hello", "pieces": ["Arr", "!"]},
            {"pieces": ["one", " two", " three"]},
            context_length=128,
        )
    )


def user(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


async def create(server: Server, **body: Any) -> dict[str, Any]:
    async with server.client() as client:
        answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    jsonschema_rs.validate(RESPONSE, response)
    return response


async def stream(server: Server, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream; check each against its schema."""
    async with server.client() as client:
        answer = await client.post("/v1/responses", json=body | {"stream": True})
    events = [
        json.loads(line.removeprefix("data: "))
        for line in answer.text.splitlines()
        if line.startswith("data: {")
    ]
    for number, event in enumerate(events):
        members = EVENTS[event["type"]]
        schema = required(type=kind(event["type"]), sequence_number=INTEGER, **members)
        jsonschema_rs.validate(schema, event)
        assert event["sequence_number"] == number
    assert answer.text.endswith("data: [DONE]\n\n")
    return events


async def test_basic_text_response(server: Server) -> None:
    response = await create(server, input=[user("Say three words.")])
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "one two three"


@pytest.mark.parametrize("background", [False, True])
async def test_streaming_response(server: Server, background: bool) -> None:
    events = await stream(server, input=[user("Count to three.")], background=background)
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["status"] == "completed"


async def test_system_prompt(server: Server) -> None:
    items = [user("You are a pirate.", "system"), user("Say hello.")]
    response = await create(server, input=items)
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "Arr!"


async def test_tool_calling(server: Server) -> None:
    response = await create(server, input=[user("What is the weather in Oslo?")], tools=[WEATHER])
    (call,) = response["output"]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert json.loads(call["arguments"]) == {"location": "Oslo"}
    assert response["tools"] == [{**WEATHER, "strict": None}]


async def test_tool_calling_streaming(server: Server) -> None:
    events = await stream(server, input=[user("The weather in Oslo?")], tools=[WEATHER])
    kinds = [event["type"] for event in events]
    for name in ("delta", "done"):
        assert f"response.function_call_arguments.{name}" in kinds
    for name in ("added", "done"):
        items = [e["item"] for e in events if e["type"] == f"response.output_item.{name}"]
        assert [item["type"] for item in items] == ["function_call"]


async def test_multi_turn_conversation(server: Server) -> None:
    items = [user("My name is Ada."), user("Hello Ada!", "assistant"), user("What is my name?")]
    response = await create(server, input=items)
    assert response["output"][0]["content"][0]["text"] == "Ada"


async def test_image_input_is_an_error_that_names_it(server: Server) -> None:
    content = [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]
    async with server.client() as client:
        body = {"input": [{"type": "message", "role": "user", "content": content}]}
        answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[0].content[0].image_url"


async def test_reasoning_incomplete_and_failed_responses_match_the_schema(server: Server) -> None:
    reasoning = await create(server, input="puzzle")
    assert [item["type"] for item in reasoning["output"]] == ["reasoning", "message"]
    assert (await stream(server, input="puzzle"))[-1]["type"] == "response.completed"
    cut = await stream(server, input="hi", max_output_tokens=1)
    assert cut[-1]["type"] == "response.incomplete"
    failed = await stream(server, input="fail")
    assert [event["type"] for event in failed[-2:]] == ["error", "response.failed"]
    tool_with_less = {"type": "function", "name": "f"}
    await create(server, input="hi", tools=[tool_with_less], metadata={"a": "b"}, user="me")


@pytest.mark.parametrize("streaming", [False, True])
async def test_conversation_that_is_too_long_is_truncated_if_the_client_wants_it(
    server: Server, streaming: bool
) -> None:
    items = [user("You are brief.", "system")]
    for number in range(60):
        items += [user(f"question {number}"), user(f"answer {number}", "assistant")]
    items.append(user("the last question"))
    body = {"input": items, "max_output_tokens": 8}
    if streaming:
        response = (await stream(server, **body, truncation="auto"))[-1]["response"]
    else:
        response = await create(server, **body, truncation="auto")
    assert (response["status"], response["truncation"]) == ("completed", "auto")
    (warning,) = response["warnings"]
    assert "oldest messages were left out" in warning
    assert 0 < response["usage"]["input_tokens"] <= 128
    async with server.client() as client:
        refused = await client.post("/v1/responses", json=body)
        wrong = await client.post("/v1/responses", json=body | {"truncation": "some"})
        # One turn alone does not fit.
        long = {"input": " ".join(["word"] * 200), "truncation": "auto"}
        hopeless = await client.post("/v1/responses", json=long)
    for answer in (refused, hopeless):
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert wrong.json()["error"]["param"] == "truncation"
