"""Encode complete messages, stop reasons and token counts."""

from __future__ import annotations

from typing import Any

import pytest

from common.json_object import JsonObject
from engine import FinishReason, Usage
from handler.apis.messages.message import encode_message
from tests.unit.handler.apis.messages.answers import complete

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def encode(output: str, **fields: Any) -> JsonObject:
    return encode_message("msg_1", "claude", complete(output, **fields))


def test_blocks_are_thinking_text_and_calls() -> None:
    message = encode(f"<think>sum</think>so: {CALL}{CALL}")
    thinking, text, first, second = message["content"]
    assert thinking == {"type": "thinking", "thinking": "sum", "signature": "1"}
    assert text == {"type": "text", "text": "so:"}
    for call in (first, second):
        assert call.pop("id").startswith("toolu_")
        assert call == {"type": "tool_use", "name": "add", "input": {"a": 1}}
    assert message["stop_reason"] == "tool_use"


def test_empty_answer_has_an_empty_text() -> None:
    assert encode("")["content"] == [{"type": "text", "text": ""}]


def test_call_that_a_limit_has_cut_is_text() -> None:
    message = encode(CALL[:-20], reason=FinishReason.LENGTH)
    assert message["stop_reason"] == "max_tokens"
    assert [each["type"] for each in message["content"]] == ["text"]
    assert message["content"][0]["text"].startswith('{"name": "add"')


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        (FinishReason.STOP, None, ("end_turn", None)),
        (FinishReason.STOP, 7, ("end_turn", None)),
        (FinishReason.STOP, "END", ("stop_sequence", "END")),
        (FinishReason.LENGTH, None, ("max_tokens", None)),
        (FinishReason.CONTENT_FILTER, None, ("refusal", None)),
    ],
)
def test_stop_reason(
    reason: FinishReason, stop: str | int | None, expected: tuple[str, str | None]
) -> None:
    message = encode("text", reason=reason, stop_reason=stop)
    assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_cached_tokens_are_not_counted_as_input() -> None:
    assert encode("text", usage=Usage(10, 5, 4))["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 5,
    }
