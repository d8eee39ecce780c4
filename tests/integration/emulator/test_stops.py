"""R78: where stop strings count, on all APIs, streamed and whole, in jobs and through the queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve

USER = [{"role": "user", "content": "hi"}]
THOUGHT = ["<think>", "is it ", "9.8?", "</think>", "\n\n", "9", ".", "8 indeed", " BEYOND"]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"name": "look", "description": "", "parameters": PARAMETERS}
CALL = ["<tool_call>", '{"name": "look", ', '"arguments": {"a": ', '"x END y"}}', "</tool_call>"]
TOOL = {"type": "function", "function": FUNCTION}
MESSAGES_TOOL = {"name": "look", "input_schema": PARAMETERS}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "tools": [TOOL]},
    "/v1/responses": {"input": USER, "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": {"messages": USER, "max_tokens": 99, "tools": [MESSAGES_TOOL]},
    "/api/chat": {"messages": USER, "model": "tiny", "tools": [TOOL]},
}
ROUTES = [*BODIES, "/v2/default/openai/v1/chat/completions", "/runsync"]


def body_of(route: str, stop: str, *, stream: bool, **extra: Any) -> dict[str, Any]:
    if route == "/runsync":
        params = {"stop": stop, **extra}
        return {"input": {"messages": USER, "sampling_params": params, "stream": stream}}
    body = BODIES[route.removeprefix("/v2/default/openai")] | {"stream": stream}
    if route == "/api/chat":
        return body | {"options": {"stop": [stop], **extra}}
    return body | ({"stop_sequences": [stop]} if "messages" in route else {"stop": stop}) | extra


async def run(serve: Serve, pieces: list[str], route: str, body: Any, **settings: Any) -> str:
    """Return the body of an answer."""
    server = await serve(settings.pop("script")({"pieces": pieces}), model_name="tiny", **settings)
    async with server.client(sends_anything=True) as client:
        answer = await client.post(route, json=body)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
async def test_stop_string_ends_the_answer_and_not_its_reasoning(
    serve: Serve, script: ScriptFactory, route: str, stream: bool
) -> None:
    body = body_of(route, "9.8", stream=stream)
    text = await run(serve, THOUGHT, route, body, script=script)
    assert "9.8?" in text
    assert "indeed" not in text
    body = body_of(route, "indeed", stream=stream)
    text = await run(serve, THOUGHT, route, body, script=script)
    assert "9.8?" in text
    assert "BEYOND" not in text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", [route for route in ROUTES if route != "/runsync"])
async def test_stop_string_does_not_end_a_call(
    serve: Serve, script: ScriptFactory, route: str, stream: bool
) -> None:
    body = body_of(route, "END", stream=stream)
    text = await run(serve, ["a", *CALL], route, body, script=script)
    assert "x END y" in text.replace("\\", "")


@pytest.mark.parametrize("route", ROUTES)
async def test_request_lets_a_stop_string_count_everywhere(
    serve: Serve, script: ScriptFactory, route: str
) -> None:
    body = body_of(route, "9.8", stream=False, stop_in_reasoning=True)
    text = await run(serve, THOUGHT, route, body, script=script)
    assert "is it" in text
    assert "9.8?" not in text


async def test_setting_lets_stop_strings_count_everywhere(
    serve: Serve, script: ScriptFactory
) -> None:
    route = "/v1/chat/completions"
    body = body_of(route, "9.8", stream=False)
    text = await run(serve, THOUGHT, route, body, script=script, stop_in_reasoning=True)
    assert "9.8?" not in text
    body |= {"stop_in_reasoning": False}
    text = await run(serve, THOUGHT, route, body, script=script, stop_in_reasoning=True)
    assert "9.8?" in text


@pytest.mark.parametrize("route", ["/v1/completions", "/api/generate"])
async def test_stop_string_of_a_raw_prompt_counts_everywhere(
    serve: Serve, script: ScriptFactory, route: str
) -> None:
    body: dict[str, Any] = {"prompt": "hi", "model": "tiny", "stream": False}
    body |= {"stop": "9.8"} if "v1" in route else {"raw": True, "options": {"stop": "9.8"}}
    text = await run(serve, THOUGHT, route, body, script=script)
    assert "9.8?" not in text


async def test_min_tokens_without_effect_does_not_keep_a_stop_string_from_counting(
    serve: Serve, script: ScriptFactory
) -> None:
    body = {"messages": USER, "stop": "STOP", "min_tokens": 5}
    route = "/v1/chat/completions"
    pieces = ["Hello", " ST", "OP", " more"]
    answer = json.loads(await run(serve, pieces, route, body, script=script))
    [choice] = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello ", "stop")
    assert "min_tokens" in str(answer["warnings"])
