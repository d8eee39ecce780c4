"""Anthropic's Messages API over HTTP, with the scripted engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.setting_error import SettingError
from engine.backends.scripted import ScriptedBackend
from engine.errors import UnsupportedParameter
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import RawConnection

ROUTE = "/v1/messages"
CHAT_ROUTE = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 32_000,
    "messages": [{"role": "user", "content": "hi there"}],
}
TOOL: dict[str, Any] = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def parse_events(body: bytes) -> list[dict[str, Any]]:
    """Return the data of all events; their names must be those in the data."""
    events = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        if block.startswith(": "):
            continue
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def join_deltas(events: list[dict[str, Any]], kind: str) -> str:
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    key = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "partial_json"}
    return "".join(each[key[kind]] for each in deltas if each["type"] == kind)


async def test_whole_message(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"when": "^user: hi there\nassistant:$", "pieces": ["he", "y"]}))
    async with server.client() as client:
        response = await client.post(f"{ROUTE}?beta=true", json=BODY)
    message = response.json()
    assert response.status_code == 200, message
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "hey"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 2,
        },
    }


async def test_stream(serve: Serve, script: ScriptFactory) -> None:
    pieces = [{"text": text, "delay_ms": 5} for text in ("he", "y")]
    server = await serve(script({"pieces": pieces}))
    async with server.client() as client:
        response = await client.post(ROUTE, json=BODY | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    start, opened, *deltas, closed, last, stop = parse_events(response.content)
    assert start["type"] == "message_start"
    assert start["message"]["usage"]["input_tokens"] == 4
    assert start["message"]["content"] == []
    assert start["message"]["model"] == "claude-sonnet-4-5"
    assert opened == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert join_deltas(deltas, "text_delta") == "hey"
    assert closed == {"type": "content_block_stop", "index": 0}
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert (last["usage"]["input_tokens"], last["usage"]["output_tokens"]) == (4, 2)
    assert stop == {"type": "message_stop"}


async def test_text_is_that_of_chat_completions(serve: Serve) -> None:
    server = await serve()
    system = "Answer with the question."
    turns = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three four"},
    ]
    body = BODY | {"system": system, "messages": turns, "temperature": 0}
    chat = {"messages": [{"role": "system", "content": system}, *turns], "temperature": 0}
    async with server.client() as client:
        message = (await client.post(ROUTE, json=body)).json()
        streamed = await client.post(ROUTE, json=body | {"stream": True})
        choice = (await client.post(CHAT_ROUTE, json=chat)).json()["choices"][0]
    text = choice["message"]["content"]
    assert text
    assert message["content"] == [{"type": "text", "text": text}]
    assert join_deltas(parse_events(streamed.content), "text_delta") == text


async def test_call_of_a_tool(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["so: ", CALL[:30], CALL[30:]]}))
    body = BODY | {"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]}
    async with server.client() as client:
        message = (await client.post(ROUTE, json=body)).json()
        streamed = await client.post(ROUTE, json=body | {"stream": True})
    text, call = message["content"]
    assert text == {"type": "text", "text": "so:"}
    assert call.pop("id").startswith("toolu_")
    assert call == {"type": "tool_use", "name": "add", "input": {"a": 1}}
    assert message["stop_reason"] == "tool_use"
    events = parse_events(streamed.content)
    opened = [each["content_block"] for each in events if each["type"] == "content_block_start"]
    assert [(each["type"], each.get("name")) for each in opened] == [
        ("text", None),
        ("tool_use", "add"),
    ]
    assert json.loads(join_deltas(events, "input_json_delta")) == {"a": 1}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_result_of_a_tool_is_a_turn_of_its_own(serve: Serve, script: ScriptFactory) -> None:
    answers: list[dict[str, Any]] = [
        {"when": "tool: 2\nassistant:$", "pieces": ["two"]},
        {"pieces": ["wrong"]},
    ]
    server = await serve(script(*answers))
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}
    turns = [
        *BODY["messages"],
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    async with server.client() as client:
        message = (await client.post(ROUTE, json=BODY | {"messages": turns})).json()
    assert message["content"] == [{"type": "text", "text": "two"}]


async def test_thinking(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["<think>", "sum", "</think>", "two"]}))
    body = BODY | {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    async with server.client() as client:
        message = (await client.post(ROUTE, json=body)).json()
        events = parse_events((await client.post(ROUTE, json=body | {"stream": True})).content)
    thinking, text = message["content"]
    assert thinking.pop("signature")
    assert thinking == {"type": "thinking", "thinking": "sum"}
    assert text == {"type": "text", "text": "two"}
    assert join_deltas(events, "thinking_delta") == "sum"
    assert join_deltas(events, "text_delta") == "two"
    kinds = [each["delta"]["type"] for each in events if each["type"] == "content_block_delta"]
    assert kinds.count("signature_delta") == 1


async def test_stop_reasons(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["one", " two", " END", " three"]}))
    async with server.client() as client:
        cut = (await client.post(ROUTE, json=BODY | {"max_tokens": 1})).json()
        stopped = (await client.post(ROUTE, json=BODY | {"stop_sequences": ["END"]})).json()
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("max_tokens", None)
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "END")


async def test_last_turn_of_the_assistant_is_continued(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"when": "assistant:The answer$", "pieces": [" is 2"]}))
    turns = [*BODY["messages"], {"role": "assistant", "content": "The answer"}]
    async with server.client() as client:
        message = (await client.post(ROUTE, json=BODY | {"messages": turns})).json()
    assert message["content"] == [{"type": "text", "text": " is 2"}]


async def test_tokens_are_counted(serve: Serve) -> None:
    server = await serve()
    body = {name: BODY[name] for name in ("model", "messages")}
    async with server.client() as client:
        counted = await client.post(f"{ROUTE}/count_tokens?beta=true", json=body)
        assert counted.json() == {"input_tokens": 4}
        longer = await client.post(f"{ROUTE}/count_tokens", json=body | {"tools": [TOOL]})
        assert longer.json()["input_tokens"] > 4


async def test_engine_without_a_tokenizer(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def tokenize(self: ScriptedBackend, text: str) -> list[int]:
        raise UnsupportedParameter("prompt: there is no tokenizer beside the model")

    monkeypatch.setattr(ScriptedBackend, "tokenize", tokenize)
    server = await serve()
    async with server.client() as client:
        response = await client.post(f"{ROUTE}/count_tokens", json=BODY)
        events = parse_events((await client.post(ROUTE, json=BODY | {"stream": True})).content)
    assert (response.status_code, response.json()["error"]) == (
        400,
        {
            "type": "invalid_request_error",
            "message": "prompt: there is no tokenizer beside the model",
        },
    )
    assert events[0]["message"]["usage"]["input_tokens"] == 0
    assert events[-2]["usage"]["input_tokens"] == 4


async def test_models_names(serve: Serve) -> None:
    server = await serve(model_name="tiny,small")
    mapped = await serve(model_name="tiny", model_name_map="gpt-*=tiny")
    async with server.client() as client, mapped.client() as other:
        for name in ("claude-haiku-4-5", "tiny", "small"):
            response = await client.post(ROUTE, json=BODY | {"model": name})
            assert response.json()["model"] == name
        assert (await client.post(ROUTE, json=BODY | {"model": "gpt-5"})).status_code == 404
        assert (await other.post(ROUTE, json=BODY | {"model": "gpt-5"})).status_code == 200
        assert (await other.post(ROUTE, json=BODY)).status_code == 404


async def test_name_map_must_name_served_models(serve: Serve) -> None:
    with pytest.raises(SettingError, match="MODEL_NAME_MAP: there is no model other"):
        await serve(model_name="tiny", model_name_map="gpt-*=other")


async def test_errors_have_the_shape_of_the_api(serve: Serve, script: ScriptFactory) -> None:
    answers: list[dict[str, Any]] = [
        {"when": "bad", "pieces": [{"error": "no"}]},
        {"pieces": ["ok"]},
    ]
    server = await serve(script(*answers, context_length=50), api_keys="secret", max_body_mb=0.01)
    long_text, huge_text = "word " * 100, "x" * 20_000
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": long_text}]}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": huge_text}]}, 413, "request_too_large"),
        ({"messages": [{"role": "user", "content": "bad"}]}, 500, "api_error"),
        ({"model": "gpt-5"}, 404, "not_found_error"),
    ]
    async with server.client(headers={"x-api-key": "secret"}) as client:
        for fields, status, kind in cases:
            for stream in (False, True):
                response = await client.post(ROUTE, json=BODY | fields | {"stream": stream})
                assert response.status_code == status
                body = response.json()
                assert body["type"] == "error"
                assert body["error"]["type"] == kind
                assert body["request_id"] == response.headers["x-request-id"]
                if long_text in str(fields):
                    assert body["error"]["message"].startswith("prompt is too long: ")
        assert (await client.get(ROUTE)).json()["error"]["type"] == "invalid_request_error"
        assert (await client.post(f"{ROUTE}/batches")).json()["error"]["type"] == "not_found_error"
    async with server.client() as client:
        response = await client.post(ROUTE, json=BODY)
    assert (response.status_code, response.json()["error"]["type"]) == (401, "authentication_error")


async def test_error_after_the_first_text_is_an_event(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["he", {"error": "broken", "delay_ms": 20}]}))
    async with server.client() as client:
        response = await client.post(ROUTE, json=BODY | {"stream": True})
    assert response.status_code == 200
    events = parse_events(response.content)
    assert events[0]["type"] == "message_start"
    assert join_deltas(events, "text_delta") == "he"
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"


async def test_disconnect_ends_the_generation(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["he", {"hang_s": 3600}]}))
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, BODY | {"stream": True})
        await wire.read_until(b"text_delta")
    await server.wait_until_idle()


async def test_new_messages_are_refused_during_a_shutdown(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        server.components.shutdown.draining.set()
        response = await client.post(ROUTE, json=BODY)
    assert (response.status_code, response.json()["error"]["type"]) == (503, "overloaded_error")
    assert response.headers["retry-after"]


@pytest.mark.parametrize("stream", [False, True])
async def test_message_without_any_token_is_refused(serve: Serve, stream: bool) -> None:
    server = await serve()
    async with server.client() as client:
        response = await client.post(ROUTE, json=BODY | {"max_tokens": 0, "stream": stream})
    assert response.status_code == 400
    assert "max_tokens must be a whole number from 1" in response.json()["error"]["message"]


async def test_models_are_listed_in_the_form_of_the_client(serve: Serve) -> None:
    server = await serve(model_name="tiny,small,other")
    headers = {"anthropic-version": "2023-06-01"}
    async with server.client() as client:

        async def get(path: str) -> Any:
            return (await client.get(f"/v1/models{path}", headers=headers)).json()

        page = await get("?limit=2")
        assert [model["id"] for model in page["data"]] == ["tiny", "small"]
        assert (page["first_id"], page["last_id"], page["has_more"]) == ("tiny", "small", True)
        rest = await get("?limit=2&after_id=small")
        assert ([model["id"] for model in rest["data"]], rest["has_more"]) == (["other"], False)
        before = await get("?limit=1&before_id=other")
        assert ([model["id"] for model in before["data"]], before["has_more"]) == (["small"], True)
        model = await get("/small")
        assert (model["type"], model["display_name"]) == ("model", "small")
        assert model["created_at"].endswith("Z")
        assert "limit must be from 1 to 1000" in str(await get("?limit=0"))
        assert (await client.get("/v1/models")).json()["object"] == "list"
