"""Parse chat messages into the flat form that chat templates need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.value_description import describe_value
from engine import ChatImage, Message
from handler.errors import InvalidRequest
from handler.input.images import check_images, read_image

# OpenAI's newer and older roles, mapped to the roles that chat templates support.
_ROLES = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


MAX_MESSAGES = 10_000
MAX_PARTS = 1_000
MAX_CALLS = 128


def read_messages(raw: Any, path: str = "") -> tuple[Message, ...]:
    """Return the messages of a request.

    Raises:
        InvalidRequest: naming the message and field that is wrong.
    """
    name = f"{path}messages"
    if not isinstance(raw, list) or not raw:
        raise InvalidRequest(f"{name} must be a non-empty array, got {describe_value(raw)}", name)
    _check_count(raw, MAX_MESSAGES, name, "messages")
    messages = tuple(_parse_message(each, f"{name}[{index}]") for index, each in enumerate(raw))
    check_images(messages, name)
    return messages


def _parse_message(raw: Any, path: str) -> Message:
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"{path} must be an object, got {describe_value(raw)}", path)
    role = raw.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(
            f"{path}.role must be one of {', '.join(_ROLES)}, got {describe_value(role)}",
            f"{path}.role",
        )
    name = raw.get("name")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(
            f"{path}.name must be a string, got {describe_value(name)}", f"{path}.name"
        )
    check_text(name or "", f"{path}.name")
    call_id = raw.get("tool_call_id")
    if call_id is not None and not isinstance(call_id, str):
        raise InvalidRequest(
            f"{path}.tool_call_id must be a string, got {describe_value(call_id)}",
            f"{path}.tool_call_id",
        )
    check_text(call_id or "", f"{path}.tool_call_id")
    calls = (
        _parse_tool_calls(raw.get("tool_calls"), f"{path}.tool_calls")
        if role == "assistant"
        else ()
    )
    content, images = _parse_content(raw.get("content"), role, f"{path}.content")
    return Message(_ROLES[role], content, name, calls, call_id, images)


def _parse_tool_calls(raw: Any, path: str) -> tuple[Mapping[str, Any], ...]:
    """Return the function calls of an assistant's turn, with the fields that templates need."""
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise InvalidRequest(f"{path} must be an array, got {describe_value(raw)}", path)
    _check_count(raw, MAX_CALLS, path, "calls")
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
        for text in (name, arguments, call_id):
            check_text(text, f"{path}[{index}]")
        calls.append(
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        )
    return tuple(calls)


def _parse_content(raw: Any, role: str, path: str) -> tuple[str, tuple[ChatImage, ...]]:
    if isinstance(raw, str):
        check_text(raw, path)
        return raw, ()
    if raw is None and role == "assistant":
        # A turn that only calls tools has no text.
        return "", ()
    if not isinstance(raw, list):
        raise InvalidRequest(
            f"{path} must be a string or an array of text parts, got {describe_value(raw)}", path
        )
    _check_count(raw, MAX_PARTS, path, "parts")
    texts: list[str] = []
    images: list[ChatImage] = []
    for index, part in enumerate(raw):
        part_path = f"{path}[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "image_url" and role == "user":
            url, url_path = part.get("image_url"), f"{part_path}.image_url"
            if isinstance(url, Mapping):
                url, url_path = url.get("url"), f"{url_path}.url"
            images.append(read_image(url, url_path, sum(map(len, texts))))
            continue
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            raise InvalidRequest(
                f'{part_path} must be {{"type": "text", "text": …}}, got {describe_value(part)}',
                part_path,
            )
        check_text(text, part_path)
        texts.append(text)
    return "".join(texts), tuple(images)


def _check_count(raw: list[Any], maximum: int, path: str, noun: str) -> None:
    if len(raw) > maximum:
        raise InvalidRequest(f"{path} must have at most {maximum} {noun}, got {len(raw)}", path)


def check_text(text: str, path: str) -> None:
    """Refuse text that is not valid Unicode: a lone surrogate cannot be encoded as UTF-8.

    Raises:
        InvalidRequest: naming the field.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{path} must be Unicode text, got half a surrogate pair at character {error.start}",
            path,
        ) from None
