"""Bodies that the APIs accept in more than one form: the description has all of the forms."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve, serve
from tests.integration.emulator.described_bodies import describe_bodies
from tests.integration.emulator.serving import Server, http_client
from tests.unit.handler.input.images import png

__all__ = ["serve"]

PNG = base64.b64encode(png()).decode()
IMAGE_URL = f"data:image/png;base64,{PNG}"
HI = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CACHED = {"cache_control": {"type": "ephemeral"}}
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
OLLAMA_CALL = {"function": {"name": "add", "arguments": {"a": 1}}}


def chat(*messages: Any, **rest: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [*messages], **rest}


def parts_of_chat(*parts: Any, role: str = "user") -> tuple[str, dict[str, Any]]:
    return chat({"role": role, "content": [*parts]})


def message(*blocks: Any, role: str = "user", **rest: Any) -> tuple[str, dict[str, Any]]:
    turns = [HI, {"role": role, "content": [*blocks]}, HI]
    return "/v1/messages", {"messages": turns, "max_tokens": 8, **rest}


def response(*items: Any, **rest: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": [*items], **rest}


def parts_of_response(*parts: Any, role: str = "user") -> tuple[str, dict[str, Any]]:
    return response({"role": role, "content": [*parts]})


def ollama(*messages: Any, **rest: Any) -> tuple[str, dict[str, Any]]:
    return "/api/chat", {"messages": [*(messages or (HI,))], "stream": False, **rest}


def generate(**rest: Any) -> tuple[str, dict[str, Any]]:
    return "/api/generate", {"prompt": "hi", "stream": False, **rest}


Bodies = Mapping[str, tuple[str, dict[str, Any]]]

CHATS: Bodies = {
    "text part": parts_of_chat({"type": "text", "text": "hi"}),
    "image": parts_of_chat({"type": "image_url", "image_url": {"url": IMAGE_URL}}),
    "image with detail": parts_of_chat(
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": IMAGE_URL, "detail": "low"}},
    ),
    "image as a string": parts_of_chat({"type": "image_url", "image_url": IMAGE_URL}),
    "image in capitals": parts_of_chat(
        {"type": "image_url", "image_url": IMAGE_URL.replace("data:image/png", "DATA:Image/PNG")}
    ),
    "parts of the system": parts_of_chat({"type": "text", "text": "hi", **CACHED}, role="system"),
    "result of a tool": chat(
        HI,
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "call_1"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "2"}]},
    ),
    "call without an id": chat(
        HI,
        {"role": "assistant", "tool_calls": [{**CALL, "id": None}]},
        {"role": "function", "name": "add", "content": "2"},
    ),
    "developer": chat({"role": "developer", "content": "short"}, HI),
    "JSON": chat(HI, response_format={"type": "json_object"}),
    "text": chat(HI, response_format={"type": "text"}),
    "whole numbers with a point": chat(HI, max_tokens=8.0, top_k=4.0),
}
MESSAGES: Bodies = {
    "image in base64": message(
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": PNG},
            **CACHED,
        },
    ),
    "image by its URL": message({"type": "image", "source": {"type": "url", "url": IMAGE_URL}}),
    "cached text": message({"type": "text", "text": "hi", **CACHED}),
    "cached system": message(
        {"type": "text", "text": "hi"}, system=[{"type": "text", "text": "short", **CACHED}]
    ),
    "result of a tool": message({"type": "tool_result", "tool_use_id": "t1", "content": "2"}),
    "result with blocks": message(
        {
            "type": "tool_result",
            "tool_use_id": "t1",
            "content": [{"type": "text", "text": "2", **CACHED}],
            "is_error": False,
        },
        {"type": "text", "text": "and now?"},
    ),
    "result without content": message(
        {"type": "tool_result", "tool_use_id": "t1", "content": None, "is_error": None}
    ),
    "call": message(
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}, **CACHED},
        role="assistant",
    ),
    "reasoning": message(
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "hi"},
        role="assistant",
    ),
    "tool of Anthropic's server": message(
        {"type": "server_tool_use", "id": "t1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "t1", "content": []},
        {"type": "text", "text": "hi"},
        role="assistant",
    ),
    "tools": message(
        {"type": "text", "text": "hi"},
        tools=[
            {"name": "add", "input_schema": SCHEMA, **CACHED},
            {"type": "custom", "name": "sub", "description": "Subtracts.", "input_schema": SCHEMA},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
    ),
    "adaptive thinking": message({"type": "text", "text": "hi"}, thinking={"type": "adaptive"}),
    "effort": message({"type": "text", "text": "hi"}, output_config={"effort": "max"}),
    "system as a turn": message({"type": "text", "text": "short"}, role="system"),
    "metadata": message({"type": "text", "text": "hi"}, metadata={"user_id": "u"}),
}
RESPONSES: Bodies = {
    "image": parts_of_response(
        {"type": "input_text", "text": "what?"},
        {"type": "input_image", "image_url": IMAGE_URL, "detail": "auto", "file_id": None},
    ),
    "empty text": ("/v1/responses", {"input": ""}),
    "only instructions": response(instructions="Say hi."),
    **{
        f"{kind} part": parts_of_response({"type": kind, "text": "hi"}, role="assistant")
        for kind in ("input_text", "output_text", "text", "reasoning_text", "summary_text")
    },
    "output_text part with its keys": response(
        HI,
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "hi", "annotations": [], "logprobs": []},
            ],
        },
        HI,
    ),
    "output_text part of the user": parts_of_response({"type": "output_text", "text": "hi"}),
    "refusal": parts_of_response({"type": "refusal", "refusal": "no"}, role="assistant"),
    "developer": response({"role": "developer", "content": "short"}, HI),
    "call": response(
        HI,
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
    ),
    "result with parts": response(
        HI,
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}", "id": "f1"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "2"}, {"type": "output_text", "text": "3"}],
        },
    ),
    "custom call": response(
        HI,
        {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "a"},
    ),
    "reasoning": response(
        HI, {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": "x"}, HI
    ),
    "item of another type": response(HI, {"type": "web_search_call", "id": "w1"}),
    "JSON": response(HI, text={"format": {"type": "json_object"}}),
    "tools": response(
        HI,
        tools=[
            {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True},
            {"type": "custom", "name": "run"},
            {"type": "web_search"},
        ],
    ),
    "effort": response(HI, reasoning={"effort": "low", "summary": "auto"}),
}
OLLAMA: Bodies = {
    "image": ollama({**HI, "images": [PNG]}),
    "only an image": ollama({"role": "user", "images": [PNG]}),
    "parts": ollama({"role": "user", "content": [{"type": "text", "text": "hi"}]}),
    "image of a prompt": generate(images=[PNG]),
    "no images": generate(images=None),
    "calls": ollama(
        HI,
        {"role": "assistant", "content": "", "tool_calls": [OLLAMA_CALL]},
        {"role": "tool", "tool_name": "add", "content": "2"},
    ),
    "call without arguments": ollama(
        HI,
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "now"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    ),
    "no messages": ("/api/chat", {"messages": None, "stream": False}),
    "defaults": generate(raw=None, truncate=None, system=None, suffix=None, options=None),
    "format": ollama(format="json"),
    "no format": ollama(format=""),
    "schema as format": ollama(format=SCHEMA),
    "schema as format of a prompt": generate(format=SCHEMA),
    **{
        f"think {think}": ollama(think=think)
        for think in (True, False, None, "", "low", "medium", "high", "max")
    },
    **{
        f"keep_alive {time!r}": generate(keep_alive=time)
        for time in (
            *(0, -1, 300, 1.5, None, "5m", "1h30m", "-1m", "+5m", "1.5h", ".5s", "250ms", "90"),
            *("-1", "10us", "10µs", "1h2m3.5s"),
        )
    },
    "options": ollama(
        options={"num_predict": -5, "seed": -7, "top_k": 2**32 - 1, "repeat_penalty": 1.1}
    ),
    "unset options": ollama(options={"temperature": None, "stop": [], "top_p": "", "num_ctx": 9}),
    "stop": ollama(options={"stop": ["a", "b"]}),
    "embed": ("/api/embed", {"input": ["a", "b"], "truncate": True, "keep_alive": "1h30m"}),
    "embed nothing": ("/api/embed", {}),
    "old embed": ("/api/embeddings", {"prompt": "a", "keep_alive": 0}),
    "old embed of nothing": ("/api/embeddings", {"prompt": ""}),
}
HISTORIES: Bodies = {
    "image of the assistant": parts_of_chat(
        {"type": "image_url", "image_url": IMAGE_URL}, role="assistant"
    ),
    "parts that a chat cannot read": parts_of_chat(
        {"type": "file", "file": {}}, {"type": "input_audio", "input_audio": {}}
    ),
    "reasoning of a chat": chat(
        HI, {"role": "assistant", "content": "a", "reasoning_content": "b"}, HI
    ),
    "image in a result": message(
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "image"}]}
    ),
    "result of an agent": message(
        {
            "type": "tool_result",
            "tool_use_id": "t1",
            "content": [
                {"type": "document", "title": "a", "source": {"type": "text", "data": "b"}},
                {"type": "document", "source": {"type": "base64", "data": "b"}},
                {"type": "search_result", "content": [{"type": "text", "text": "a"}]},
                {"type": "tool_reference", "tool_name": "add"},
                {"type": "hologram"},
            ],
        }
    ),
    "document": message({"type": "document", "source": {}}),
    "image of the assistant in a response": parts_of_response(
        {"type": "input_image", "image_url": IMAGE_URL}, role="assistant"
    ),
    "parts that a response cannot read": parts_of_response(
        {"type": "input_file", "file_id": "a"}, {"type": "hologram"}
    ),
    "reasoning of a response": response(
        HI,
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_image", "image_url": "file:///a.webp"}],
        },
    ),
}
OTHERS: Bodies = {
    "mixed embeddings": ("/v1/embeddings", {"input": ["a", [1, 2]]}),
    "tokenized messages": ("/tokenize", {"messages": [HI]}),
    "tokenized text": ("/tokenize", {"prompt": "a", "messages": None}),
}
ACCEPTED = {
    "chat completions": CHATS,
    "messages": MESSAGES,
    "responses": RESPONSES,
    "Ollama": OLLAMA,
    "histories": HISTORIES,
    "others": OTHERS,
}
# Both the server and the schemas refuse these.
REFUSED: Bodies = {
    "image of the web": parts_of_chat(
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    ),
    "part of an unknown type": parts_of_chat({"type": "text_part", "text": "a"}),
    "image in the instructions": (
        "/v1/messages",
        {"max_tokens": 9, "messages": [HI], "system": [{"type": "image"}]},
    ),
    "document without its text": message({"type": "document", "source": {"type": "text"}}),
    "image of a file": parts_of_response(
        {"type": "input_image", "image_url": IMAGE_URL, "file_id": "file-1"}
    ),
    "part without a type": parts_of_response({"text": "a"}),
    "item without a call": response(HI, {"type": "function_call", "name": "add"}),
    "format": ollama(format="xml"),
    "think": ollama(think="xhigh"),
    "keep_alive": generate(keep_alive="5 minutes"),
    "keep_alive of units": generate(keep_alive="1d"),
    "option": ollama(options={"temperature": 3}),
}


async def start_server(serve: Serve, script: ScriptFactory) -> Server:
    return await serve(script({"pieces": ["{}"]}, capabilities={"images": True}))


@pytest.mark.parametrize("api", ACCEPTED)
async def test_accepted_bodies_are_described(serve: Serve, script: ScriptFactory, api: str) -> None:
    server = await start_server(serve, script)
    described = describe_bodies(server.app, server.components.settings)
    problems: dict[str, Any] = {}
    async with http_client(server.url) as client:
        for name, (path, body) in ACCEPTED[api].items():
            answer = await client.post(path, json=body)
            if answer.status_code != 200:
                problems[name] = answer.text
            elif reasons := described.find_problems(path, body):
                problems[name] = reasons
    assert problems == {}


async def test_refused_bodies_do_not_match_the_description(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await start_server(serve, script)
    described = describe_bodies(server.app, server.components.settings)
    problems: dict[str, Any] = {}
    async with http_client(server.url) as client:
        for name, (path, body) in REFUSED.items():
            answer = await client.post(path, json=body)
            if answer.status_code != 400 or not described.find_problems(path, body):
                problems[name] = answer.text
    assert problems == {}
