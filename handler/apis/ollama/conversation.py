"""Read Ollama's messages as a chat."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from common.json_object import JsonObject
from common.value_description import describe_value
from engine import Message
from handler.errors import InvalidRequest
from handler.input.message_content import MessageContent
from handler.input.messages import (
    MAX_CALLS,
    ROLES,
    ReadMessages,
    add_content,
    build_tool_call,
    check_array,
    check_count,
    check_messages,
    read_reasoning,
)
from handler.input.text import check_text

# Ollama's images have no media type; the reader looks at the data alone.
_ANY_IMAGE = "image/png"


def read_messages(messages: Any) -> ReadMessages:
    """Return the messages of a chat.

    Calls of functions have no ids in Ollama's API: each gets one, and the results of the calls are
    matched by the function's name, otherwise by their order.

    Raises:
        InvalidRequest: naming the message and field that is wrong.
    """
    reader = _MessageReader()
    read = [
        reader.read(message, f"messages[{index}]")
        for index, message in enumerate(check_array(messages, "messages"))
    ]
    return ReadMessages(check_messages(read, "messages"), tuple(reader.warnings))


def add_images(content: MessageContent, images: Any, path: str) -> None:
    """Add images in base64, or in data URLs, to a message. Raises InvalidRequest."""
    if images in (None, []):
        return
    if not isinstance(images, list) or not all(isinstance(each, str) for each in images):
        raise InvalidRequest(
            f"{path} must be an array of images in base64, got {describe_value(images)}", path
        )
    for index, image in enumerate(images):
        image_path = f"{path}[{index}]"
        if image.startswith("data:"):
            content.add_image(image, image_path)
        else:
            content.add_base64_image(_ANY_IMAGE, image, image_path)


class _MessageReader:
    """Reads messages in their order, and remembers the calls that have no result so far."""

    def __init__(self) -> None:
        # The ids and names of calls.
        self._open_calls: list[tuple[str, str]] = []
        self._count = 0
        self.warnings: list[str] = []

    def read(self, message: Any, path: str) -> Message:
        if not isinstance(message, Mapping):
            raise InvalidRequest(f"{path} must be an object, got {describe_value(message)}", path)
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise InvalidRequest(
                f"{path}.role must be one of {', '.join(ROLES)}, got {describe_value(role)}",
                f"{path}.role",
            )
        calls: tuple[JsonObject, ...] = ()
        call_id: str | None = None
        if role == "assistant" and message.get("tool_calls") not in (None, []):
            calls = self._read_calls(message["tool_calls"], f"{path}.tool_calls")
        elif role == "tool":
            call_id = self._take_call(message, path)
        content = MessageContent()
        images, images_path = message.get("images"), f"{path}.images"
        if role == "user":
            add_images(content, images, images_path)
        else:
            content.add_image_if_readable(
                partial(add_images, content, images, images_path), images_path
            )
        # A turn of calls or of images only has no text. Some clients send OpenAI's parts.
        if message.get("content") is not None:
            add_content(content, message["content"], role, f"{path}.content")
        self.warnings += content.warnings
        reasoning = ""
        if role == "assistant" and message.get("thinking") is not None:
            reasoning = read_reasoning(message["thinking"], f"{path}.thinking")
        return Message(ROLES[role], content.text, None, calls, call_id, content.images, reasoning)

    def _read_calls(self, calls: Any, path: str) -> tuple[JsonObject, ...]:
        """Return the calls; a call without an id gets a number."""
        if not isinstance(calls, list):
            raise InvalidRequest(f"{path} must be an array, got {describe_value(calls)}", path)
        check_count(calls, MAX_CALLS, path, "calls")
        return tuple(self._read_call(call, f"{path}[{index}]") for index, call in enumerate(calls))

    def _read_call(self, call: Any, path: str) -> JsonObject:
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise InvalidRequest(
                f"{path} must have a function with a name and an object of arguments, "
                f"got {describe_value(call)}",
                path,
            )
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            call_id = f"call_{self._count}"
        self._count += 1
        self._open_calls.append((call_id, name))
        # With the white space that models write, so that the engine's cache has the same prompt.
        text = json.dumps(arguments, ensure_ascii=False)
        return build_tool_call(call_id, name, text, path)

    def _take_call(self, message: JsonObject, path: str) -> str | None:
        """Return the id of the call that a message has the result of; it is open no longer."""
        raw_id = message.get("tool_call_id")
        if raw_id is not None and not isinstance(raw_id, str):
            raise InvalidRequest(
                f"{path}.tool_call_id must be a string, got {describe_value(raw_id)}",
                f"{path}.tool_call_id",
            )
        call_id = raw_id or None
        check_text(call_id or "", f"{path}.tool_call_id")
        name = message.get("tool_name") or message.get("name")
        matches: Sequence[int] = [
            index
            for index, (open_id, called) in enumerate(self._open_calls)
            if (open_id == call_id if call_id is not None else called == name)
        ]
        if matches:
            return self._open_calls.pop(matches[0])[0]
        if call_id is not None:
            return call_id
        return self._open_calls.pop(0)[0] if self._open_calls and name is None else None
