"""Translate Ollama's messages into those of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from common.value_description import describe_value
from handler.errors import InvalidRequest
from handler.input.images import base64_image_part

# How the base64 of each format begins: Ollama's images do not say what they are.
_IMAGE_TYPES = {"/9j/": "jpeg", "R0lG": "gif", "UklG": "webp"}


def translate_messages(messages: Any) -> Any:
    """Return the messages; what is no array is returned as it is, for the reader of chats.

    Calls of functions have no ids in Ollama's API: each gets one, and the results of the calls are
    matched by the function's name, otherwise by their order.

    Raises:
        InvalidRequest: naming the message and field that is wrong.
    """
    if not isinstance(messages, list):
        return messages
    translated: list[Any] = []
    # The calls without a result so far: their ids and names.
    open_calls: list[tuple[str, str]] = []
    count = 0
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if not isinstance(message, Mapping):
            translated.append(message)
            continue
        role = message.get("role")
        new: dict[str, Any] = {"role": role, "content": _read_content(message, path)}
        if role == "assistant" and message.get("tool_calls") not in (None, []):
            calls = _translate_calls(message["tool_calls"], f"{path}.tool_calls", count)
            count += len(calls)
            open_calls += [(call["id"], call["function"]["name"]) for call in calls]
            new["tool_calls"] = calls
        elif role == "tool":
            new["tool_call_id"] = _take_call(open_calls, message)
        translated.append(new)
    return translated


def continues_last(messages: Any) -> bool:
    """Return whether the answer continues the last message: it is the assistant's text."""
    if not isinstance(messages, list) or len(messages) < 2 or not isinstance(messages[-1], dict):
        return False
    last = messages[-1]
    return last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last


def image_parts(images: Any, path: str) -> list[dict[str, Any]]:
    """Return OpenAI's parts for images in base64. Raises InvalidRequest."""
    if not isinstance(images, list) or not all(isinstance(each, str) for each in images):
        raise InvalidRequest(
            f"{path} must be an array of images in base64, got {describe_value(images)}", path
        )
    return [
        base64_image_part(f"image/{_IMAGE_TYPES.get(each[:4], 'png')}", each, f"{path}[{index}]")
        for index, each in enumerate(images)
    ]


def _read_content(message: Mapping[str, Any], path: str) -> Any:
    content = message.get("content")
    if content is None:
        # A turn of calls or of images only has no text.
        content = ""
    if message.get("images") in (None, []):
        return content
    parts = image_parts(message["images"], f"{path}.images")
    return [*parts, {"type": "text", "text": content}] if content else parts


def _translate_calls(calls: Any, path: str, count: int) -> list[dict[str, Any]]:
    """Return the calls; those without an id are numbered from `count`."""
    if not isinstance(calls, list):
        raise InvalidRequest(f"{path} must be an array, got {describe_value(calls)}", path)
    translated = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise InvalidRequest(
                f"{path}[{index}] must have a function with a name and an object of arguments, "
                f"got {describe_value(call)}",
                f"{path}[{index}]",
            )
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            call_id = f"call_{count + index}"
        # With the white space that models write, so that the engine's cache has the same prompt.
        text = json.dumps(arguments, ensure_ascii=False)
        described = {"name": name, "arguments": text}
        translated.append({"id": call_id, "type": "function", "function": described})
    return translated


def _take_call(open_calls: list[tuple[str, str]], message: Mapping[str, Any]) -> str | None:
    """Return the id of the call that a message has the result of, and remove it from the list."""
    call_id: str | None = message.get("tool_call_id") or None
    name = message.get("tool_name") or message.get("name")
    matches: Sequence[int] = [
        index
        for index, (open_id, called) in enumerate(open_calls)
        if (open_id == call_id if call_id is not None else called == name)
    ]
    if matches:
        return open_calls.pop(matches[0])[0]
    if call_id is not None:
        return call_id
    return open_calls.pop(0)[0] if open_calls and name is None else None
