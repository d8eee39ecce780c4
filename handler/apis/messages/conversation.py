"""Read `system` and `messages` as a chat."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
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
    check_array,
    check_count,
    check_messages,
    read_reasoning,
)
from handler.input.text import check_text

_ROLES = ("user", "assistant", "system")
_BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
# Calls that Anthropic's servers make and answer themselves.
_SERVER_TOOL_USE = "server_tool_use"
_SERVER_RESULT_SUFFIX = "_tool_result"


def read_conversation(system: Any, messages: Any) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Return the messages of a chat, and a warning for each block that was skipped.

    A result of a tool becomes a message of its own, with the role `tool`.

    Raises:
        InvalidRequest: naming the message and field that is wrong.
    """
    reader = _ConversationReader()
    if system is not None and (text := _read_system(system)):
        reader.messages.append(Message("system", text))
    for index, message in enumerate(check_array(messages, "messages")):
        reader.add_message(message, f"messages[{index}]")
    return check_messages(reader.messages, "messages"), tuple(reader.warnings)


class _ConversationReader:
    """Adds turns of the Messages API to the messages of a chat."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.warnings: list[str] = []

    def add_message(self, message: Any, path: str) -> None:
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
            check_text(content, path)
            self.messages.append(Message(role, content))
            return
        if not isinstance(content, list):
            raise InvalidRequest(
                f"{path} must be a string or an array of blocks, got {describe_value(content)}",
                path,
            )
        check_count(content, MAX_PARTS, path, "blocks")
        if role == "assistant":
            self._add_assistant(content, path)
        elif role == "user":
            self._add_user(content, path)
        else:
            self.messages.append(Message(role, _read_text(content, path)))

    def _add_user(self, blocks: list[Any], path: str) -> None:
        """Add a user's turn: its contents, and the results of tools in their order."""
        content, has_results = MessageContent(), False
        for index, block in enumerate(blocks):
            block_path = f"{path}[{index}]"
            if _read_type(block, block_path) != "tool_result":
                _add_block(content, block, block_path)
                continue
            has_results = True
            if not content.is_empty:
                self._add_content(Message("user", ""), content)
                content = MessageContent()
            self._add_result(block, block_path)
        if not content.is_empty or not has_results:
            self._add_content(Message("user", ""), content)

    def _add_result(self, block: JsonObject, path: str) -> None:
        call_id, content = _read_string(block, "tool_use_id", path), MessageContent()
        if block.get("is_error") is True:
            # Chat templates have no field for it.
            content.add_text("Error: ", path)
        result, path = block.get("content"), f"{path}.content"
        if isinstance(result, str):
            content.add_text(result, path)
        elif result is not None:
            for block_path, part in _list_blocks(result, path):
                _add_block(content, part, block_path, is_result=True)
        self._add_content(Message("tool", "", tool_call_id=call_id), content)

    def _add_content(self, message: Message, content: MessageContent) -> None:
        self.messages.append(replace(message, content=content.text, images=content.images))
        self.warnings += content.warnings

    def _add_assistant(self, blocks: list[Any], path: str) -> None:
        """Add an assistant's turn: its texts and its calls."""
        content, calls, reasoning = MessageContent(), list[JsonObject](), list[str]()
        for index, block in enumerate(blocks):
            block_path = f"{path}[{index}]"
            kind = _read_type(block, block_path)
            if kind == "tool_use":
                calls.append(_read_call(block, block_path))
            elif kind == _SERVER_TOOL_USE or kind.endswith(_SERVER_RESULT_SUFFIX):
                self.warnings.append(
                    f"{block_path} belongs to a tool that this server does not have, and was "
                    "skipped"
                )
            elif kind == "thinking":
                path_of_text = f"{block_path}.thinking"
                reasoning.append(read_reasoning(block.get("thinking", ""), path_of_text))
            elif kind != "redacted_thinking":
                _add_block(content, block, block_path)
        check_count(calls, MAX_CALLS, path, "calls")
        turn = Message("assistant", "", tool_calls=tuple(calls), reasoning="\n".join(reasoning))
        self._add_content(turn, content)


def _add_block(content: MessageContent, block: Any, path: str, *, is_result: bool = False) -> None:
    """Add a block of a turn, or of a tool's result; what the model cannot be given is left out."""
    match _read_type(block, path):
        case "text":
            content.add_text(_read_text_block(block, path), path)
        case "image" if is_result:
            content.add_image_if_readable(partial(_add_image, content, block, path), path)
        case "image":
            _add_image(content, block, path)
        case "document":
            _add_document(content, block, path)
        case "search_result":
            lines = [str(block[name]) for name in ("title", "source") if block.get(name)]
            content.add_text("\n".join([*lines, _read_text(block.get("content"), path)]), path)
        case "tool_reference":
            content.add_text(f"[tool {_read_string(block, 'tool_name', path)}]", path)
        case kind:
            content.leave_out(describe_type(kind), "the model reads no blocks of this type", path)


def _add_document(content: MessageContent, block: JsonObject, path: str) -> None:
    """Add the text of a document; other documents are left out."""
    source = block.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    title = block.get("title")
    if isinstance(title, str) and title:
        content.add_text(f"{title}\n", f"{path}.title")
    if kind == "text":
        content.add_text(_read_string(source or {}, "data", f"{path}.source"), path)
    elif kind == "content":
        content.add_text(_read_text((source or {}).get("content"), f"{path}.source.content"), path)
    else:
        content.leave_out("document", "the model reads text, and no files such as PDF", path)


def _add_image(content: MessageContent, block: JsonObject, path: str) -> None:
    path = f"{path}.source"
    source = block.get("source")
    if isinstance(source, Mapping):
        if source.get("type") == "url":
            content.add_image(source.get("url"), f"{path}.url")
            return
        media_type, data = source.get("media_type"), source.get("data")
        if source.get("type") == "base64" and isinstance(media_type, str) and isinstance(data, str):
            content.add_base64_image(media_type, data, path)
            return
    raise InvalidRequest(
        f'{path} must be {{"type": "base64", "media_type": …, "data": …}}, '
        f"got {describe_value(source)}",
        path,
    )


def _read_call(block: JsonObject, path: str) -> JsonObject:
    call_id, name = _read_string(block, "id", path), _read_string(block, "name", path)
    arguments = block.get("input")
    if not isinstance(arguments, Mapping):
        raise InvalidRequest(
            f"{path}.input must be an object, got {describe_value(arguments)}", f"{path}.input"
        )
    # With the white space that models write, so that the engine's cache has the same prompt.
    text = json.dumps(arguments, ensure_ascii=False)
    return build_tool_call(call_id, name, text, path)


def _read_system(system: Any) -> str:
    """Return the system prompt, without the line by which Claude Code accounts for its requests.

    That line differs in every request, so that no prompt would begin as the one before it.
    """
    return "".join(_BILLING_LINE.sub("", text) for text in _read_texts(system, "system"))


def _read_text(content: Any, path: str) -> str:
    return "".join(_read_texts(content, path))


def _read_texts(content: Any, path: str) -> list[str]:
    """Return a string, or the texts of an array of text blocks."""
    if isinstance(content, str):
        check_text(content, path)
        return [content]
    return [
        _read_text_block(block, block_path) for block_path, block in _list_blocks(content, path)
    ]


def _list_blocks(content: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the blocks of an array with their paths."""
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{path} must be a string or an array of text blocks, got {describe_value(content)}",
            path,
        )
    check_count(content, MAX_PARTS, path, "blocks")
    for index, block in enumerate(content):
        yield f"{path}[{index}]", block


def _read_type(block: Any, path: str) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidRequest(
            f"{path} must be an object with a type, got {describe_value(block)}", path
        )
    return kind


def _read_text_block(block: Any, path: str) -> str:
    kind, text = _read_type(block, path), block.get("text")
    if kind != "text" or not isinstance(text, str):
        raise InvalidRequest(
            f'{path} must be {{"type": "text", "text": …}}, got {describe_value(block)}', path
        )
    check_text(text, path)
    return text


def _read_string(block: JsonObject, name: str, path: str) -> str:
    value, path = block.get(name), f"{path}.{name}"
    if not isinstance(value, str):
        raise InvalidRequest(f"{path} must be a string, got {describe_value(value)}", path)
    check_text(value, path)
    return value
