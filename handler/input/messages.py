"""Parse chat messages into the flat form that chat templates need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from common.value_description import describe_value
from engine import Message
from handler.errors import InvalidRequest
from handler.input.images import check_images
from handler.input.message_content import MessageContent
from handler.input.text import check_text

# OpenAI's newer and older roles, mapped to the roles that chat templates support.
ROLES = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

MAX_MESSAGES = 10_000
# The names of DeepSeek and llama.cpp, and the newer one of vLLM.
_REASONING_KEYS = ("reasoning_content", "reasoning")
MAX_PARTS = 1_000
# Where the parts with text have it.
_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
UNREADABLE_PARTS = {
    "audio_url": "audio",
    "file": "file",
    "input_audio": "audio",
    "video_url": "video",
}
MAX_CALLS = 128


class ReadMessages(NamedTuple):
    """The messages of a request, and warnings about parts that were left out."""

    messages: tuple[Message, ...]
    warnings: tuple[str, ...] = ()


def read_messages(raw: Any, path: str = "") -> ReadMessages:
    """Return the messages of a request.

    Raises:
        InvalidRequest: naming the message and field that is wrong.
    """
    name = f"{path}messages"
    warnings: list[str] = []
    messages = [
        _parse_message(each, f"{name}[{index}]", warnings)
        for index, each in enumerate(check_array(raw, name))
    ]
    return ReadMessages(check_messages(messages, name), tuple(warnings))


def check_array(raw: Any, name: str) -> list[Any]:
    """Return a field that is an array with messages in it. Raises InvalidRequest."""
    if not isinstance(raw, list) or not raw:
        raise InvalidRequest(f"{name} must be a non-empty array, got {describe_value(raw)}", name)
    check_count(raw, MAX_MESSAGES, name, "messages")
    return raw


def check_messages(messages: Sequence[Message], name: str) -> tuple[Message, ...]:
    """Return the messages that were read from a field, checked together. Raises InvalidRequest."""
    check_count(messages, MAX_MESSAGES, name, "messages")
    check_images(messages, name)
    return tuple(messages)


def check_continued(messages: Sequence[Message]) -> None:
    """Refuse a chat whose last message cannot be continued. Raises InvalidRequest."""
    last = messages[-1]
    if len(messages) < 2 or last.role != "assistant" or not last.content or last.tool_calls:
        raise InvalidRequest(
            "continue_final_message needs an assistant's message with text and no calls at the end "
            "of messages, after at least one other message",
            "continue_final_message",
        )


def build_tool_call(call_id: str, name: str, arguments: str, path: str) -> Mapping[str, Any]:
    """Return a call of an assistant's turn as chat templates expect it. Raises InvalidRequest."""
    for text in (name, arguments, call_id):
        check_text(text, path)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _parse_message(raw: Any, path: str, warnings: list[str]) -> Message:
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"{path} must be an object, got {describe_value(raw)}", path)
    role = raw.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(
            f"{path}.role must be one of {', '.join(ROLES)}, got {describe_value(role)}",
            f"{path}.role",
        )
    name = raw.get("name")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(
            f"{path}.name must be a string, got {describe_value(name)}", f"{path}.name"
        )
    if name:
        check_text(name, f"{path}.name")
    call_id = raw.get("tool_call_id")
    if call_id is not None and not isinstance(call_id, str):
        raise InvalidRequest(
            f"{path}.tool_call_id must be a string, got {describe_value(call_id)}",
            f"{path}.tool_call_id",
        )
    if call_id:
        check_text(call_id, f"{path}.tool_call_id")
    calls = (
        _parse_tool_calls(raw.get("tool_calls"), f"{path}.tool_calls")
        if role == "assistant"
        else ()
    )
    reasoning = _read_reasoning(raw, path) if role == "assistant" else ""
    text, path = raw.get("content"), f"{path}.content"
    if isinstance(text, str):
        check_text(text, path)
        return Message(ROLES[role], text, name, calls, call_id, reasoning=reasoning)
    content = MessageContent()
    add_content(content, text, role, path)
    warnings += content.warnings
    return Message(ROLES[role], content.text, name, calls, call_id, content.images, reasoning)


def _read_reasoning(raw: Mapping[str, Any], path: str) -> str:
    """Return the reasoning that a client sends back with an assistant's turn."""
    for name in _REASONING_KEYS:
        if (reasoning := raw.get(name)) is not None:
            return read_reasoning(reasoning, f"{path}.{name}")
    return ""


def read_reasoning(reasoning: Any, path: str) -> str:
    """Return the text of a turn's reasoning. Raises InvalidRequest."""
    if not isinstance(reasoning, str):
        raise InvalidRequest(f"{path} must be a string, got {describe_value(reasoning)}", path)
    check_text(reasoning, path)
    return reasoning


def _parse_tool_calls(raw: Any, path: str) -> tuple[Mapping[str, Any], ...]:
    """Return the function calls of an assistant's turn, with the fields that templates need."""
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise InvalidRequest(f"{path} must be an array, got {describe_value(raw)}", path)
    check_count(raw, MAX_CALLS, path, "calls")
    calls = []
    for index, call in enumerate(raw):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise InvalidRequest(
                f"{path}[{index}] must have a function with a name and arguments, both strings, "
                f"got {describe_value(call)}",
                path,
            )
        raw_id = call.get("id")
        call_id = raw_id if isinstance(raw_id, str) else ""
        calls.append(build_tool_call(call_id, name, arguments, f"{path}[{index}]"))
    return tuple(calls)


def add_content(content: MessageContent, raw: Any, role: str, path: str) -> None:
    """Add the content of a message in OpenAI's form: a text, or an array of parts.

    Raises InvalidRequest.
    """
    if raw is None and role == "assistant":
        # A turn that only calls tools has no text.
        return
    if isinstance(raw, str):
        content.add_text(raw, path)
        return
    if not isinstance(raw, list):
        raise InvalidRequest(
            f"{path} must be a string or an array of text parts, got {describe_value(raw)}", path
        )
    check_count(raw, MAX_PARTS, path, "parts")
    for index, part in enumerate(raw):
        _add_part(content, part, role, f"{path}[{index}]")


def _add_part(content: MessageContent, part: Any, role: str, path: str) -> None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        kind = ""
    if kind == "image_url":
        url, url_path = part.get("image_url"), f"{path}.image_url"
        if isinstance(url, Mapping):
            url, url_path = url.get("url"), f"{url_path}.url"
        if role == "user":
            content.add_image(url, url_path)
        else:
            content.add_image_if_readable(partial(content.add_image, url, url_path), path)
        return
    if kind in UNREADABLE_PARTS:
        content.leave_out(UNREADABLE_PARTS[kind], "the model reads only text and images", path)
        return
    text = part.get(_TEXT_PARTS[kind]) if kind in _TEXT_PARTS else None
    if not isinstance(text, str):
        raise InvalidRequest(
            f'{path} must be {{"type": "text", "text": …}}, got {describe_value(part)}', path
        )
    content.add_text_part(text, path)


def check_count(items: Sequence[Any], maximum: int, path: str, noun: str) -> None:
    """Check the length of an array. Raises InvalidRequest."""
    if len(items) > maximum:
        raise InvalidRequest(f"{path} must have at most {maximum} {noun}, got {len(items)}", path)
