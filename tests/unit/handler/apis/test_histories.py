"""Content of agents' histories: the model receives it, or a sentence in its place."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from engine import Chat, Message
from handler.apis.core.call_runner import CallDefaults
from handler.apis.core.parsed_call import ParsedCall
from handler.apis.messages.request import read_request as read_messages_request
from handler.apis.ollama.request import read_chat as read_ollama_chat
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.apis.responses.request import read_request as read_responses_request
from tests.unit.handler.apis.served_model import TINY
from tests.unit.handler.input.images import png

PNG = base64.b64encode(png(2, 2)).decode()
NO_IMAGE = base64.b64encode(b"RIFF....WEBPVP8 ").decode()
USER: dict[str, Any] = {"role": "user", "content": "look"}
DEFAULTS = CallDefaults()


def read_openai(content: Any) -> ParsedCall:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": content},
    ]
    return OpenAICall(CHAT, {"messages": turns}, "tiny").parsed


def read_messages(content: Any) -> ParsedCall:
    result = {"type": "tool_result", "tool_use_id": "c", "content": content}
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    turns = [
        USER,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    return read_messages_request({"messages": turns}, TINY, DEFAULTS)


def read_responses(output: Any) -> ParsedCall:
    items = [
        USER,
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]
    return read_responses_request({"input": items}, (), "", TINY, DEFAULTS).call


def read_ollama(images: Any) -> ParsedCall:
    turns = [
        USER,
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "", "images": images},
    ]
    call = read_ollama_chat({"messages": turns}, TINY, DEFAULTS).call
    assert call is not None
    return call


def result_of(call: ParsedCall) -> Message:
    (chat,) = call.prompts
    assert isinstance(chat, Chat)
    assert chat.messages[-1].role == "tool"
    return chat.messages[-1]


def url_of(data: str) -> str:
    return f"data:image/png;base64,{data}"


def images_in_results(data: str) -> list[ParsedCall]:
    """Return the call of each API in which a tool returned an image."""
    source = {"type": "base64", "media_type": "image/png", "data": data}
    return [
        read_openai([{"type": "image_url", "image_url": {"url": url_of(data)}}]),
        read_messages([{"type": "image", "source": source}]),
        read_responses([{"type": "input_image", "image_url": url_of(data)}]),
        read_ollama([data]),
    ]


def test_image_of_a_tool_is_passed_to_the_model() -> None:
    for call in images_in_results(PNG):
        assert [image.data for image in result_of(call).images] == [PNG]
        assert call.warnings == ()


def test_image_of_a_tool_that_cannot_be_read_is_left_out() -> None:
    for call in images_in_results(NO_IMAGE):
        result = result_of(call)
        assert (
            result.content
            == "[image left out: must be a PNG, JPEG or GIF image, got WebP: convert it first]"
        )
        assert result.images == ()
        [warning] = call.warnings
        assert "was left out: must be a PNG" in warning


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (
            {
                "type": "document",
                "title": "Notes",
                "source": {"type": "text", "media_type": "text/plain", "data": "a b"},
            },
            "Notes\na b",
        ),
        (
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "text", "text": "a"}]},
            },
            "a",
        ),
        (
            {
                "type": "search_result",
                "title": "Oslo",
                "source": "https://example.com",
                "content": [{"type": "text", "text": "in Norway"}],
            },
            "Oslo\nhttps://example.com\nin Norway",
        ),
        ({"type": "tool_reference", "tool_name": "add"}, "[tool add]"),
    ],
)
def test_blocks_with_text_are_passed_to_the_model(block: dict[str, Any], text: str) -> None:
    call = read_messages([block])
    assert result_of(call).content == text
    assert call.warnings == ()


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (read_messages([{"type": "document", "source": {"type": "base64"}}]), "messages[2]"),
        (read_messages([{"type": "hologram"}]), "messages[2]"),
        (read_responses([{"type": "input_file", "file_id": "file_1"}]), "input[2]"),
        (read_responses([{"type": "input_audio", "input_audio": {}}]), "input[2]"),
        (read_openai([{"type": "file", "file": {"file_id": "file_1"}}]), "messages[2]"),
        (read_openai([{"type": "input_audio", "input_audio": {}}]), "messages[2]"),
    ],
)
def test_part_that_the_model_cannot_read_is_left_out(call: ParsedCall, path: str) -> None:
    assert "left out" in result_of(call).content
    [warning] = call.warnings
    assert warning.startswith(path)
    assert "was left out" in warning


@pytest.mark.parametrize("as_blocks", [True, False])
def test_billing_line_of_an_agent_does_not_change_the_prompt(as_blocks: bool) -> None:
    prompts = []
    for number in ("1", "2"):
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={number};"
        system: Any = f"{line}\nYou are an agent."
        if as_blocks:
            texts = (line, "You are an agent.")
            system = [{"type": "text", "text": text} for text in texts]
        body = {"system": system, "messages": [USER]}
        prompts.append(read_messages_request(body, TINY, DEFAULTS).prompts)
    assert prompts[0] == prompts[1]
    (chat,) = prompts[0]
    assert isinstance(chat, Chat)
    assert chat.messages[0] == Message("system", "You are an agent.")


def test_agents_may_send_300_tools_with_long_names() -> None:
    tools = [
        {"name": f"mcp__plugin_{'x' * 100}_{number}", "input_schema": {"type": "object"}}
        for number in range(300)
    ]
    call = read_messages_request({"messages": [USER], "tools": tools}, TINY, DEFAULTS)
    assert call.reply_format is not None
    assert len(call.reply_format.functions) == 300


def test_older_name_of_the_form_of_an_answer() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    call = read_messages_request({"messages": [USER], "output_format": form}, TINY, DEFAULTS)
    assert call.parameters.sampling.json_schema == {"type": "object"}
    assert call.warnings == ()
