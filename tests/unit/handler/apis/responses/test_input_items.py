"""Input items as chat messages."""

from __future__ import annotations

from typing import Any

import pytest

from engine import Message
from handler.apis.responses.input_items import MAX_ITEMS, read_conversation, read_items
from handler.errors import InvalidRequest
from tests.unit.handler.input.images import data_url, png

CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}


def test_string_is_a_message_of_the_user() -> None:
    assert read_conversation(read_items("hi")) == ((Message("user", "hi"),), ())


def test_text_parts_of_all_kinds_are_lines() -> None:
    content = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b", "annotations": []},
        {"type": "refusal", "refusal": "c"},
    ]
    item = {"role": "assistant", "content": content, "id": "msg_1"}
    assert read_conversation([item]) == ((Message("assistant", "a\nb\nc"),), ())


def test_calls_join_the_message_before_them_and_each_other() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x\ny"}
    items: list[dict[str, Any]] = [
        {"role": "assistant", "content": "on it"},
        CALL,
        custom,
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "done"}],
        },
        CALL | {"call_id": "c3"},
    ]
    messages, _ = read_conversation(items)
    assert [message.role for message in messages] == ["assistant", "tool", "tool", "assistant"]
    assert [call["id"] for call in messages[0].tool_calls] == ["c1", "c2"]
    assert messages[0].tool_calls[1]["function"]["arguments"] == '{"input": "x\\ny"}'
    assert [message.content for message in messages] == ["on it", "3", "done", ""]


def test_reasoning_joins_what_follows_it() -> None:
    thought = [{"type": "reasoning_text", "text": "sum"}]
    summary = [{"type": "summary_text", "text": "done"}]
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": thought},
        CALL,
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"type": "reasoning", "id": "rs_2", "summary": summary, "encrypted_content": "x"},
        {"role": "assistant", "content": "It is 3."},
        {"type": "reasoning", "id": "rs_3"},
        {"role": "user", "content": "why?"},
    ]
    messages, warnings = read_conversation(items)
    assert [message.reasoning for message in messages] == ["sum", "", "done", ""]
    assert warnings == ()


def test_unknown_types_are_reported_once() -> None:
    items = [
        {"type": "shell_call"},
        {"type": "shell_call"},
        {"role": "user", "content": "hi"},
    ]
    messages, warnings = read_conversation(items)
    assert [message.content for message in messages] == ["hi"]
    assert warnings == ("input items of type shell_call were skipped",)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": [{"type": 3}]}, "input[0].content[0]"),
        ({"role": "user", "content": ["text"]}, "input[0].content[0]"),
        ({"type": 3}, "input[0].type"),
        (CALL | {"arguments": {}}, "input[0].arguments"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "p"}, "input[0].input"),
    ],
)
def test_error_names_the_item_and_the_field(item: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_conversation([item])
    assert caught.value.param == param


def test_number_of_items_is_limited() -> None:
    with pytest.raises(InvalidRequest, match=f"at most {MAX_ITEMS} items"):
        read_items([{}] * (MAX_ITEMS + 1))


def test_images_of_the_user_keep_their_place() -> None:
    url = data_url(png())
    content = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": url, "detail": "auto"},
        {"type": "input_text", "text": "b"},
    ]
    [message], _ = read_conversation([{"role": "user", "content": content}])
    assert (message.content, [image.position for image in message.images]) == ("ab", [1])


@pytest.mark.parametrize(
    ("role", "part", "param"),
    [
        ("user", {"file_id": "file_1"}, "input[0].content[0].file_id"),
        ("user", {"image_url": "https://example.com/a.png"}, "input[0].content[0].image_url"),
        ("user", {}, "input[0].content[0].image_url"),
    ],
)
def test_other_images_are_refused(role: str, part: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_conversation([{"role": role, "content": [{"type": "input_image", **part}]}])
    assert raised.value.param == param
