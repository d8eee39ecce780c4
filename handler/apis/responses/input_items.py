"""Read the input items of a response as chat messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from common.json_object import JsonObject
from common.value_description import describe_value
from engine import Message
from handler.errors import InvalidRequest
from handler.input.message_content import MessageContent, describe_type
from handler.input.messages import (
    MAX_CALLS,
    MAX_PARTS,
    build_tool_call,
    check_count,
    check_messages,
)
from handler.input.messages import ROLES as TEMPLATE_ROLES
from handler.input.text import check_text

MAX_ITEMS = 10_000
ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_IMAGE_PART = "input_image"


def read_items(raw: Any, name: str = "input") -> list[JsonObject]:
    """Return the items of a member of the body; a string is one message of the user.

    Raises InvalidRequest.
    """
    if isinstance(raw, str):
        return [{"type": "message", "role": "user", "content": raw}]
    if not isinstance(raw, list):
        raise InvalidRequest(
            f"{name} must be a string or an array of items, got {describe_value(raw)}", name
        )
    if len(raw) > MAX_ITEMS:
        raise InvalidRequest(f"{name} must have at most {MAX_ITEMS} items, got {len(raw)}", name)
    for index, item in enumerate(raw):
        if not isinstance(item, Mapping):
            raise InvalidRequest(
                f"{name}[{index}] must be an object, got {describe_value(item)}", f"{name}[{index}]"
            )
    return raw


def read_conversation(
    items: Sequence[JsonObject], earlier_items: Sequence[JsonObject] = ()
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Return the chat messages of input items, and a warning for each type that was skipped.

    `earlier_items` come first: those of the responses that the client continues.

    Raises:
        InvalidRequest: naming the item and field that is wrong.
    """
    reader = _ItemReader()
    for index, item in enumerate(earlier_items):
        reader.add(item, f"previous_items[{index}]")
    for index, item in enumerate(items):
        reader.add(item, f"input[{index}]")
    skipped = (f"input items of type {each} were skipped" for each in reader.skipped)
    return check_messages(reader.messages, "input"), (*skipped, *reader.warnings)


class _ItemReader:
    """Adds items to the messages of a chat.

    Calls join the assistant's message before them, because templates expect both in one turn.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        # The types that were skipped, in their order.
        self.skipped: dict[str, None] = {}
        # About parts that were left out.
        self.warnings: list[str] = []
        # The reasoning before the assistant's next message or call.
        self._reasoning = ""

    def add(self, item: JsonObject, path: str) -> None:
        match _item_type(item, path):
            case "message":
                self._add_message(item, path)
            case "function_call":
                self._add_call(item, _read_string(item, "arguments", path), path)
            case "custom_tool_call":
                text = _read_string(item, "input", path)
                self._add_call(item, json.dumps({"input": text}), path)
            case "function_call_output" | "custom_tool_call_output":
                call_id = _read_string(item, "call_id", path)
                content = MessageContent()
                _add_content(content, item.get("output"), f"{path}.output")
                self._add(Message("tool", "", tool_call_id=call_id), content)
            case "reasoning":
                self._add_reasoning(item, path)
            case other:
                self.skipped[other] = None

    def _add_message(self, item: JsonObject, path: str) -> None:
        role, content = item.get("role"), MessageContent()
        if role not in ROLES:
            raise InvalidRequest(
                f"{path}.role must be one of {', '.join(ROLES)}, got {describe_value(role)}",
                f"{path}.role",
            )
        _add_content(content, item.get("content"), f"{path}.content", is_user=role == "user")
        reasoning = ""
        if role == "assistant":
            reasoning, self._reasoning = self._reasoning, ""
        self._add(Message(TEMPLATE_ROLES[role], "", reasoning=reasoning), content)

    def _add(self, message: Message, content: MessageContent) -> None:
        self.messages.append(replace(message, content=content.text, images=content.images))
        self.warnings += content.warnings

    def _add_reasoning(self, item: JsonObject, path: str) -> None:
        """Keep the text of a reasoning item, or its summary if that is all there is.

        Encrypted content is another provider's, and cannot be read.
        """
        for name in ("content", "summary"):
            raw = item.get(name)
            if raw and (text := _read_text(raw, f"{path}.{name}")):
                self._reasoning = _join(self._reasoning, text)
                return

    def _add_call(self, item: JsonObject, arguments: str, path: str) -> None:
        name, call_id = _read_string(item, "name", path), _read_string(item, "call_id", path)
        if not self.messages or self.messages[-1].role != "assistant":
            self.messages.append(Message("assistant", ""))
        last = self.messages[-1]
        if self._reasoning:
            last = replace(last, reasoning=_join(last.reasoning, self._reasoning))
            self._reasoning = ""
        calls = (*last.tool_calls, build_tool_call(call_id, name, arguments, path))
        check_count(calls, MAX_CALLS, path, "calls before it and with it")
        self.messages[-1] = replace(last, tool_calls=calls)


def _item_type(item: JsonObject, path: str) -> str:
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise InvalidRequest(
            f"{path}.type must be a string, got {describe_value(kind)}", f"{path}.type"
        )
    return describe_value(kind) if len(kind) > 64 else kind


def _read_text(raw: Any, path: str) -> str:
    """Return the text of a content: a string or an array of text parts. Raises InvalidRequest."""
    content = MessageContent()
    _add_content(content, raw, path)
    return content.text


def _add_content(content: MessageContent, raw: Any, path: str, *, is_user: bool = False) -> None:
    """Add a content, which is a string or an array of parts. Raises InvalidRequest."""
    if isinstance(raw, str):
        content.add_text(raw, path)
        return
    if not isinstance(raw, list):
        raise InvalidRequest(
            f"{path} must be a string or an array of text parts, got {describe_value(raw)}", path
        )
    check_count(raw, MAX_PARTS, path, "parts")
    for index, part in enumerate(raw):
        _add_part(content, part, f"{path}[{index}]", is_user=is_user)


def _add_part(content: MessageContent, part: Any, path: str, *, is_user: bool) -> None:
    """Add a part of a message. A part that the model cannot read is left out, with a warning."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidRequest(
            f'{path} must be {{"type": "input_text", "text": …}}, got {describe_value(part)}', path
        )
    if kind == _IMAGE_PART and is_user:
        _add_image(content, part, path)
    elif kind == _IMAGE_PART:
        content.add_image_if_readable(partial(_add_image, content, part, path), path)
    elif kind in _TEXT_PARTS or kind == "refusal":
        name = "refusal" if kind == "refusal" else "text"
        content.add_text_part(_read_string(part, name, path), path)
    else:
        what = describe_type(kind.removeprefix("input_"))
        content.leave_out(what, "the model reads only text and images", path)


def _add_image(content: MessageContent, part: JsonObject, path: str) -> None:
    if part.get("file_id") is not None:
        raise InvalidRequest(f"{path}.file_id is not supported, image_url is", f"{path}.file_id")
    content.add_image(part.get("image_url"), f"{path}.image_url")


def _read_string(item: JsonObject, name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(
            f"{path}.{name} must be a string, got {describe_value(value)}", f"{path}.{name}"
        )
    check_text(value, f"{path}.{name}")
    return value


def _join(reasoning: str, more: str) -> str:
    """Return two parts of a turn's reasoning as one, with the line breaks that each has."""
    return f"{reasoning}\n{more}" if reasoning else more
