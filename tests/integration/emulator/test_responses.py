"""`/v1/responses` over HTTP, with the openai package and without."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server

ROUTE = "/v1/responses"
ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Apply a patch.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
CUSTOM = '<tool_call>{"name": "apply_patch", "arguments": {"input": "*** a\\nb"}}</tool_call>'


def split(text: str) -> list[str]:
    return [text[start : start + 5] for start in range(0, len(text), 5)]


@pytest.fixture
async def server(serve: Serve, script: ScriptFactory) -> Server:
    return await serve(
        script(
            {"when": "<tool_response>\\s3", "pieces": ["It is 3."]},
            {"when": "call it", "pieces": split(CALL)},
            {"when": "patch it", "pieces": split(f"On it. {CUSTOM}")},
            {"when": "think", "pieces": split("<think>two and two</think>four")},
            {"when": "bad", "pieces": ["so far", {"error": "out of memory", "delay_ms": 20}]},
            {"when": "more(.|\n)*and then", "pieces": ["the rest"]},
            {"when": "^system: be brief\nuser: hi\n", "pieces": ["he", "y"]},
            {"pieces": ["Good", " day"]},
        ),
        model_name="little",
    )


# The client of openai; its unions of thirty types would need a cast at each item and event.
@pytest.fixture
async def client(server: Server) -> AsyncIterator[Any]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1/", api_key="any", max_retries=0) as client:
        yield client


async def test_response_has_text_and_usage(client: Any) -> None:
    response = await client.responses.create(
        model="little", input="hi", instructions="be brief", metadata={"k": "v"}
    )
    assert response.output_text == "hey"
    assert (response.status, response.object) == ("completed", "response")
    assert response.metadata == {"k": "v"}
    assert response.instructions == "be brief"
    assert response.usage is not None
    assert response.usage.output_tokens == 2
    assert response.usage.total_tokens == response.usage.input_tokens + 2
    (item,) = response.output
    assert (item.type, item.status) == ("message", "completed")


async def test_streamed_response_has_numbered_events_in_order(client: Any) -> None:
    stream = await client.responses.create(model="little", input="hi", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    last = events[-1]
    assert last.type == "response.completed"
    assert "".join(deltas) == last.response.output_text == "Good day"
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 2


async def test_client_collects_a_streamed_response(client: Any) -> None:
    async with client.responses.stream(model="little", input="think") as stream:
        async for _ in stream:
            pass
        response = await stream.get_final_response()
    reasoning, message = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "two and two"
    assert message.type == "message"
    assert response.output_text == "four"


async def test_function_is_called_and_its_output_answered(client: Any) -> None:
    for stream in (False, True):
        if stream:
            async with client.responses.stream(
                model="little", input="call it", tools=[ADD]
            ) as events:
                kinds = [event.type async for event in events]
                first = await events.get_final_response()
            assert "response.function_call_arguments.delta" in kinds
            assert "response.output_text.delta" not in kinds
        else:
            first = await client.responses.create(model="little", input="call it", tools=[ADD])
        (call,) = first.output
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1})
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        last = await client.responses.create(
            model="little",
            previous_response_id=first.id,
            input=[output],
            tools=[ADD],
        )
        assert last.output_text == "It is 3."
        assert last.previous_response_id == first.id


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_custom_tool_is_called_with_raw_input(client: Any, is_streamed: bool) -> None:
    if is_streamed:
        stream = await client.responses.create(
            model="little", input="patch it", tools=[PATCH], stream=True
        )
        events = [event async for event in stream]
        done = [each for each in events if each.type == "response.custom_tool_call_input.done"]
        assert [each.input for each in done] == ["*** a\nb"]
        assert events[-1].type == "response.completed"
        output = events[-1].response.output
    else:
        output = (
            await client.responses.create(model="little", input="patch it", tools=[PATCH])
        ).output
    message, call = output
    assert message.type == "message"
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("apply_patch", "*** a\nb")


async def test_unknown_tools_and_items_are_skipped_with_warnings(server: Server) -> None:
    body = {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "encrypted_content": "x"},
            {"type": "web_search_call", "id": "ws_1"},
        ],
        "tools": [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": []}],
        "tool_choice": "auto",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
    }
    async with server.client() as http:
        response = await http.post(ROUTE, json=body)
    assert response.status_code == 200, response.text
    assert response.json()["warnings"] == [
        "input items of type web_search_call were skipped",
        "tools of type web_search are not supported and were skipped",
        "tools of type namespace are not supported and were skipped",
    ]


async def test_conversation_continues_and_can_be_read_and_deleted(client: Any) -> None:
    first = await client.responses.create(model="little", input="more")
    second = await client.responses.create(
        model="little", input="and then", previous_response_id=first.id
    )
    assert second.output_text == "the rest"
    read = await client.responses.retrieve(second.id)
    assert read == second
    items = await client.responses.input_items.list(second.id)
    (item,) = items.data
    assert item.content == "and then"
    await client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="there is no response"):
        await client.responses.create(
            model="little", input="and then", previous_response_id=second.id
        )
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError, match="background"):
        await client.responses.cancel(second.id)


async def test_unstored_response_is_not_found(client: Any) -> None:
    response = await client.responses.create(model="little", input="hi", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)


async def test_limit_makes_a_response_incomplete(client: Any) -> None:
    response = await client.responses.create(model="little", input="hi", max_output_tokens=1)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    stream = await client.responses.create(
        model="little", input="hi", max_output_tokens=1, stream=True
    )
    events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"


async def test_failure_after_the_first_text_ends_the_stream_with_failed(
    client: Any,
) -> None:
    stream = await client.responses.create(model="little", input="bad", stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1]
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert "out of memory" in failed.response.error.message
    with pytest.raises(openai.InternalServerError, match="out of memory"):
        await client.responses.create(model="little", input="bad")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]},
            "input[0].call_id",
        ),
        ({"input": []}, "input"),
        ({"input": "x", "max_output_tokens": -1}, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "max_tokens": 0, "stream": True}, "max_tokens"),
        ({"input": "x", "instructions": 3}, "instructions"),
        ({"input": "x", "reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"input": "x", "text": {"format": {"type": "yaml"}}}, "text.format"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "background": 1}, "background"),
        ({"input": "x", "previous_response_id": "resp_no"}, "previous_response_id"),
        ({"input": "x", "metadata": {"a": 1}}, "metadata"),
        ({"input": "x", "n": 2}, "n"),
        ({"input": "x", "temperature": 9}, "temperature"),
        ({"input": "x", "model": "gpt-5"}, "model"),
    ],
)
async def test_error_names_the_parameter_of_the_response(
    server: Server, body: dict[str, Any], param: str
) -> None:
    async with server.client() as http:
        response = await http.post(ROUTE, json=body)
    assert response.status_code in (400, 404)
    error = response.json()["error"]
    assert error["param"] == param, error
    assert "messages" not in error["message"]


async def test_schema_holds_the_text(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    async with server.client() as http:
        response = await http.post(ROUTE, json={"input": "hi", "text": text})
    body = response.json()
    assert body["text"] == text
    # The scripted engine cannot constrain its answers, so the response is checked and says so.
    assert any("schema" in warning for warning in body["warnings"])


async def test_text_is_the_same_as_in_a_chat(server: Server) -> None:
    messages = [{"role": "user", "content": "think"}]
    async with server.client() as http:
        chat = (await http.post("/v1/chat/completions", json={"messages": messages})).json()
        body = (await http.post(ROUTE, json={"input": messages})).json()
    assert body["output"][-1]["content"][0]["text"] == chat["choices"][0]["message"]["content"]


async def test_summary_is_sent_to_clients_that_read_only_it(client: Any) -> None:
    request = {"model": "little", "input": "think", "reasoning": {"summary": "auto"}}
    response = await client.responses.create(**request)
    item = response.output[0]
    assert [part.text for part in item.summary] == ["two and two"]
    assert [part.text for part in item.content] == ["two and two"]
    assert response.reasoning.summary == "auto"
    deltas, kinds = "", []
    async for event in await client.responses.create(**request, stream=True):
        kinds.append(event.type)
        if event.type == "response.reasoning_summary_text.delta":
            deltas += event.delta
        elif event.type == "response.reasoning_summary_part.done":
            assert event.part.text == "two and two"
    assert deltas == "two and two"
    order = [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
    ]
    assert sorted(order, key=kinds.index) == order
    plain = await client.responses.create(model="little", input="think")
    assert plain.output[0].summary == []
    with pytest.raises(openai.BadRequestError, match=r"reasoning\.summary must be one of"):
        await client.responses.create(**request | {"reasoning": {"summary": "short"}})


async def test_reasoning_tokens_are_counted(client: Any, server: Server) -> None:
    response = await client.responses.create(model="little", input="think")
    # Of five characters each: the reasoning with its marks, and the answer.
    assert response.usage.output_tokens_details.reasoning_tokens == 6
    assert response.usage.output_tokens == 6
    turn = [{"role": "user", "content": "think"}]
    chat = await client.chat.completions.create(model="little", messages=turn)
    assert chat.usage.completion_tokens_details.reasoning_tokens == 6
    hi = [{"role": "user", "content": "good"}]
    chat = await client.chat.completions.create(model="little", messages=hi)
    assert chat.usage.completion_tokens_details is None
    async with server.client() as http:
        job = await http.post("/runsync", json={"input": {"messages": turn}})
    assert job.json()["output"]["usage"]["reasoning"] == 6


async def test_input_tokens_are_counted(client: Any, server: Server) -> None:
    counted = await client.responses.input_tokens.count(model="little", input="hi there")
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", 4)
    longer = await client.responses.input_tokens.count(
        model="little", input="hi there", instructions="be brief", tools=[ADD]
    )
    assert longer.input_tokens > 10
    first = await client.responses.create(model="little", input="hi there")
    more = await client.responses.input_tokens.count(
        model="little", input="and then", previous_response_id=first.id
    )
    assert more.input_tokens > 6
    async with server.client() as http:
        job_input = {"openai_route": f"{ROUTE}/input_tokens", "openai_input": {"input": "hi there"}}
        job = await http.post("/runsync", json={"input": job_input})
    assert job.json()["output"] == {"object": "response.input_tokens", "input_tokens": 4}
