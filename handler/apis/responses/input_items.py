"""Translate the input items of a response to chat messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.value_description import describe_value
from handler.errors import InvalidRequest
from handler.input.images import image_part, join_parts

MAX_ITEMS = 10_000
ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_IMAGE_PART = "input_image"
_MEDIA_PARTS = (_IMAGE_PART, "input_file", "input_audio", "input_video")


def read_items(raw: Any, name: str = "input") -> list[Mapping[str, Any]]:
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


@dataclass(slots=True)
class Conversation:
    """The chat messages of input items, with the client's path for each of them."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, message: dict[str, Any], path: str) -> None:
        """Add a message that was made of the item at `path`."""
        self.messages.append(message)
        self.paths.append(path)


def to_conversation(
    items: Sequence[Mapping[str, Any]], earlier_items: Sequence[Mapping[str, Any]] = ()
) -> Conversation:
    """Return the chat messages of input items, and a warning for each type that was skipped.

    `earlier_items` come first: those of the responses that the client continues. Calls join the
    assistant's message before them, because templates expect both in one turn.

    Raises:
        InvalidRequest: naming the item and field that is wrong.
    """
    conversation = Conversation()
    skipped: dict[str, None] = {}
    named = [
        *((f"previous_items[{index}]", item) for index, item in enumerate(earlier_items)),
        *((f"input[{index}]", item) for index, item in enumerate(items)),
    ]
    for path, item in named:
        match _item_type(item, path):
            case "message":
                role = item.get("role")
                if role not in ROLES:
                    raise InvalidRequest(
                        f"{path}.role must be one of {', '.join(ROLES)}, "
                        f"got {describe_value(role)}",
                        f"{path}.role",
                    )
                content_path = f"{path}.content"
                content = (
                    _read_content(item.get("content"), content_path)
                    if role == "user"
                    else read_text(item.get("content"), content_path)
                )
                conversation.add({"role": role, "content": content}, path)
            case "function_call":
                arguments = _read_string(item, "arguments", path)
                _add_call(conversation, item, _read_string(item, "name", path), arguments, path)
            case "custom_tool_call":
                arguments = json.dumps({"input": _read_string(item, "input", path)})
                _add_call(conversation, item, _read_string(item, "name", path), arguments, path)
            case "function_call_output" | "custom_tool_call_output":
                conversation.add(
                    {
                        "role": "tool",
                        "tool_call_id": _read_string(item, "call_id", path),
                        "content": read_text(item.get("output"), f"{path}.output"),
                    },
                    path,
                )
            case "reasoning":
                # Templates leave out the reasoning of earlier turns.
                pass
            case other:
                skipped[other] = None
    conversation.warnings = [f"input items of type {each} were skipped" for each in skipped]
    return conversation


def _item_type(item: Mapping[str, Any], path: str) -> str:
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise InvalidRequest(
            f"{path}.type must be a string, got {describe_value(kind)}", f"{path}.type"
        )
    return describe_value(kind) if len(kind) > 64 else kind


def _add_call(
    conversation: Conversation, item: Mapping[str, Any], name: str, arguments: str, path: str
) -> None:
    call = {
        "id": _read_string(item, "call_id", path),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    messages = conversation.messages
    if not messages or messages[-1]["role"] != "assistant":
        conversation.add({"role": "assistant", "content": None}, path)
    messages[-1].setdefault("tool_calls", []).append(call)


def _read_content(raw: Any, path: str) -> str | list[dict[str, Any]]:
    """Return the content of a user's message, which may have images. Raises InvalidRequest."""
    if not isinstance(raw, list):
        return read_text(raw, path)
    parts: list[str | dict[str, Any]] = []
    for index, part in enumerate(raw):
        part_path = f"{path}[{index}]"
        if isinstance(part, Mapping) and part.get("type") == _IMAGE_PART:
            if part.get("file_id") is not None:
                raise InvalidRequest(
                    f"{part_path}.file_id is not supported, image_url is", f"{part_path}.file_id"
                )
            parts.append(image_part(part.get("image_url"), f"{part_path}.image_url"))
        else:
            parts.append(_read_part(part, part_path))
    return join_parts(parts)


def read_text(raw: Any, path: str) -> str:
    """Return the text of a content: a string or an array of text parts. Raises InvalidRequest."""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        raise InvalidRequest(
            f"{path} must be a string or an array of text parts, got {describe_value(raw)}", path
        )
    return "".join(_read_part(part, f"{path}[{index}]") for index, part in enumerate(raw))


def _read_part(part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text: Any = None
    if kind in _TEXT_PARTS:
        text = part.get("text")
    elif kind == "refusal":
        text = part.get("refusal")
    elif kind in _MEDIA_PARTS:
        supported = "only text is supported"
        if kind == _IMAGE_PART:
            supported = "only messages of the user may have images"
        raise InvalidRequest(f"{path} is of type {kind}, and {supported}", path)
    if not isinstance(text, str):
        raise InvalidRequest(
            f'{path} must be {{"type": "input_text", "text": …}}, got {describe_value(part)}', path
        )
    return text


def _read_string(item: Mapping[str, Any], name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(
            f"{path}.{name} must be a string, got {describe_value(value)}", f"{path}.{name}"
        )
    return value
