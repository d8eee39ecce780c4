"""Translate `system` and `messages` into the messages of chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common.value_description import describe_value
from handler.errors import InvalidRequest
from handler.input.images import base64_image_part, image_part, join_parts

_ROLES = ("user", "assistant", "system")
_IMAGE = "image"
# Chat templates leave out the reasoning of earlier turns, or have no place for it.
_THINKING = frozenset({"thinking", "redacted_thinking"})
# Calls that Anthropic's servers make and answer themselves.
_SERVER_TOOL_USE = "server_tool_use"
_SERVER_RESULT_SUFFIX = "_tool_result"


@dataclass(slots=True)
class Conversation:
    """Messages of chat completions, with the client's path for each of them.

    A result of a tool becomes a message of its own, with the role `tool`.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def continues_last(self) -> bool:
        """Whether the answer continues the last message: it is the assistant's text."""
        last = self.messages[-1] if len(self.messages) > 1 else {}
        is_text = bool(last.get("content")) and "tool_calls" not in last
        return last.get("role") == "assistant" and is_text

    def add(self, message: dict[str, Any], path: str) -> None:
        """Add a message that was translated from the client's field at `path`."""
        self.messages.append(message)
        self.paths.append(path)


def translate_conversation(system: Any, messages: Any) -> Conversation:
    """Return the messages of a body whose `messages` are an array.

    Raises:
        InvalidRequest: naming the message and field that is wrong.
    """
    conversation = Conversation()
    if system is not None and (text := _read_text(system, "system")):
        conversation.add({"role": "system", "content": text}, "system")
    for index, message in enumerate(messages):
        _translate_message(conversation, message, f"messages[{index}]")
    return conversation


def _translate_message(conversation: Conversation, message: Any, path: str) -> None:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{path} must be an object, got {describe_value(message)}", path)
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise InvalidRequest(
            f"{path}.role must be one of {', '.join(_ROLES)}, got {describe_value(role)}",
            f"{path}.role",
        )
    path = f"{path}.content"
    if isinstance(content, str):
        conversation.add({"role": role, "content": content}, path)
    elif not isinstance(content, list):
        raise InvalidRequest(
            f"{path} must be a string or an array of blocks, got {describe_value(content)}", path
        )
    elif role == "assistant":
        _translate_assistant(conversation, content, path)
    elif role == "user":
        _translate_user(conversation, content, path)
    else:
        conversation.add({"role": role, "content": _read_text(content, path)}, path)


def _translate_user(conversation: Conversation, blocks: list[Any], path: str) -> None:
    """Add a user's turn: its texts and images, and the results of tools in their order."""
    parts: list[str | dict[str, Any]] = []
    has_results = False
    for index, block in enumerate(blocks):
        block_path = f"{path}[{index}]"
        kind = _read_type(block, block_path)
        if kind == _IMAGE:
            parts.append(_translate_image(block, block_path))
            continue
        if kind != "tool_result":
            parts.append(_read_text_block(block, block_path))
            continue
        has_results = True
        if parts:
            conversation.add({"role": "user", "content": join_parts(parts)}, path)
            parts = []
        conversation.add(_translate_result(block, block_path), block_path)
    if parts or not has_results:
        conversation.add({"role": "user", "content": join_parts(parts)}, path)


def _translate_image(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    path = f"{path}.source"
    source = block.get("source")
    if isinstance(source, Mapping):
        if source.get("type") == "url":
            return image_part(source.get("url"), f"{path}.url")
        media_type, data = source.get("media_type"), source.get("data")
        if source.get("type") == "base64" and isinstance(media_type, str) and isinstance(data, str):
            return base64_image_part(media_type, data, path)
    raise InvalidRequest(
        f'{path} must be {{"type": "base64", "media_type": …, "data": …}}, '
        f"got {describe_value(source)}",
        path,
    )


def _translate_result(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    call_id = block.get("tool_use_id")
    if not isinstance(call_id, str):
        raise InvalidRequest(
            f"{path}.tool_use_id must be a string, got {describe_value(call_id)}",
            f"{path}.tool_use_id",
        )
    content = block.get("content")
    text = "" if content is None else _read_text(content, f"{path}.content")
    if block.get("is_error") is True:
        # Chat templates have no field for it.
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _translate_assistant(conversation: Conversation, blocks: list[Any], path: str) -> None:
    """Add an assistant's turn: its texts and its calls."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        block_path = f"{path}[{index}]"
        kind = _read_type(block, block_path)
        if kind == "tool_use":
            calls.append(_translate_call(block, block_path))
        elif kind == _SERVER_TOOL_USE or kind.endswith(_SERVER_RESULT_SUFFIX):
            conversation.warnings.append(
                f"{block_path} belongs to a tool that this server does not have, and was skipped"
            )
        elif kind not in _THINKING:
            texts.append(_read_text_block(block, block_path))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
    conversation.add(message, path)


def _translate_call(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    name, arguments, call_id = block.get("name"), block.get("input"), block.get("id")
    for key, value in (("id", call_id), ("name", name)):
        if not isinstance(value, str):
            raise InvalidRequest(
                f"{path}.{key} must be a string, got {describe_value(value)}", f"{path}.{key}"
            )
    if not isinstance(arguments, Mapping):
        raise InvalidRequest(
            f"{path}.input must be an object, got {describe_value(arguments)}", f"{path}.input"
        )
    # With the white space that models write, so that the engine's cache has the same prompt.
    text = json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def _read_text(content: Any, path: str) -> str:
    """Return a string, or the texts of an array of text blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{path} must be a string or an array of text blocks, got {describe_value(content)}",
            path,
        )
    return "".join(
        _read_text_block(block, f"{path}[{index}]") for index, block in enumerate(content)
    )


def _read_type(block: Any, path: str) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidRequest(
            f"{path} must be an object with a type, got {describe_value(block)}", path
        )
    return kind


def _read_text_block(block: Any, path: str) -> str:
    kind = _read_type(block, path)
    if kind == _IMAGE:
        raise InvalidRequest(
            f"{path} has the type {kind}: only messages of the user may have images", path
        )
    if kind == "document":
        raise InvalidRequest(f"{path} has the type {kind}: the model reads no documents", path)
    text = block.get("text")
    if kind != "text" or not isinstance(text, str):
        raise InvalidRequest(
            f'{path} must be {{"type": "text", "text": …}}, got {describe_value(block)}', path
        )
    return text
