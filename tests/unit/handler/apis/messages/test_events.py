"""The events of a streamed message, in any division of the output."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import orjson
from hypothesis import given
from hypothesis import strategies as st

from common.json_object import JsonObject
from engine import Delta
from engine.errors import EngineCrashed
from handler.apis.core.best_of import build_requests
from handler.apis.messages.events import MessageEncoder, stream_message
from handler.apis.messages.message import encode_message
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.generation.active_generation import ActiveGeneration
from handler.generation.completed_answer import CompletedAnswer
from tests.unit.handler.apis.messages.answers import complete

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": [TOOL]}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
OUTPUT = f"<think>sum\n\nof</think>so\u2028: {CALL}\n{CALL}"
_KEYS = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "partial_json"}


class FakeGeneration:
    """Yields deltas, then the answer or an error."""

    starts_in_reasoning = False

    def __init__(self, texts: Sequence[str], error: Exception | None = None) -> None:
        self._texts = texts
        (self.request,) = build_requests(OpenAICall(CHAT, BODY, "tiny").parsed)
        self._error = error

    async def batches(self, interval_s: float) -> AsyncIterator[list[Delta]]:
        for text in self._texts:
            yield [Delta(text)]
        if self._error is not None:
            raise self._error

    async def build_answer(self) -> CompletedAnswer:
        return complete("".join(self._texts))


async def stream(texts: Sequence[str], error: Exception | None = None) -> list[dict[str, Any]]:
    """Return the data of all events."""
    generation = cast("ActiveGeneration", FakeGeneration(texts, error))
    encoder = MessageEncoder("msg_1", "claude", 3)
    blocks = [block async for block in stream_message(generation, encoder)]
    assert all(block.endswith(b"\n\n") for block in blocks)
    events = []
    for event in b"".join(blocks).decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.splitlines()
        events.append(orjson.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def collect_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Assemble a message as clients do, and check the order of the events."""
    start, *middle, delta, stop = events
    assert start["type"] == "message_start"
    assert delta["type"] == "message_delta"
    assert stop == {"type": "message_stop"}
    message = dict(start["message"])
    content: list[dict[str, Any]] = []
    texts: list[str] = []
    is_open = is_signed = False
    for event in middle:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(content)
            content.append(event["content_block"])
            is_open, is_signed, texts = True, False, []
            continue
        assert is_open
        assert event["index"] == len(content) - 1
        block = content[-1]
        if event["type"] == "content_block_stop":
            is_open = False
            assert is_signed is (block["type"] == "thinking")
            if block["type"] == "tool_use":
                block["input"] = orjson.loads("".join(texts))
            else:
                block[block["type"]] = "".join(texts)
        elif event["delta"]["type"] == "signature_delta":
            assert not is_signed
            is_signed = True
            block["signature"] = event["delta"]["signature"]
        else:
            assert not is_signed
            texts.append(event["delta"][_KEYS[event["delta"]["type"]]])
    assert not is_open
    return {**message, "content": content, **delta["delta"], "usage": delta["usage"]}


def without_ids(message: JsonObject) -> JsonObject:
    content = [
        {key: value for key, value in block.items() if key != "id"} for block in message["content"]
    ]
    return {**message, "content": content}


@given(st.lists(st.integers(0, len(OUTPUT)), max_size=8))
async def test_events_add_up_to_the_message_in_any_division(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(OUTPUT)]
    texts = [OUTPUT[start:end] for start, end in itertools.pairwise(edges)]
    message = collect_message(await stream(texts))
    expected = encode_message("msg_1", "claude", complete(OUTPUT))
    assert without_ids(message) == without_ids(expected)
    assert len(message["content"]) == 4


async def test_message_start_counts_the_prompt() -> None:
    start = (await stream(["a"]))[0]
    assert start["message"]["usage"]["input_tokens"] == 3
    assert start["message"]["stop_reason"] is None


async def test_empty_answer_has_an_empty_text() -> None:
    message = collect_message(await stream([]))
    assert message["content"] == [{"type": "text", "text": ""}]


async def test_error_ends_the_stream() -> None:
    events = await stream(["a"], EngineCrashed("the engine crashed"))
    assert events[0]["type"] == "message_start"
    assert events[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "the engine crashed"},
    }
