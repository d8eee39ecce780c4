"""Chat messages from the outside, flattened to what a chat template takes (R34)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine import Message
from handler.errors import InvalidRequest
from handler.sampling import shown

# OpenAI's newer and older names for the same turn; templates know the ones on the right.
_ROLES = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def read_messages(raw: Any, path: str = "") -> tuple[Message, ...]:
    """Return the messages of a request.

    Raises:
        InvalidRequest: naming the message and field that is wrong.
    """
    name = f"{path}messages"
    if not isinstance(raw, list) or not raw:
        raise InvalidRequest(f"{name} must be a non-empty array, got {shown(raw)}", name)
    return tuple(_message(each, f"{name}[{index}]") for index, each in enumerate(raw))


def _message(raw: Any, path: str) -> Message:
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"{path} must be an object, got {shown(raw)}", path)
    role = raw.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(
            f"{path}.role must be one of {', '.join(_ROLES)}, got {shown(role)}", f"{path}.role"
        )
    name = raw.get("name")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"{path}.name must be a string, got {shown(name)}", f"{path}.name")
    check_text(name or "", f"{path}.name")
    return Message(_ROLES[role], _content(raw.get("content"), role, f"{path}.content"), name)


def _content(raw: Any, role: str, path: str) -> str:
    if isinstance(raw, str):
        return _text(raw, path)
    if raw is None and role == "assistant":
        # A turn that only called tools has no text.
        return ""
    if not isinstance(raw, list):
        raise InvalidRequest(
            f"{path} must be a string or an array of text parts, got {shown(raw)}", path
        )
    texts = []
    for index, part in enumerate(raw):
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(text, str):
            raise InvalidRequest(
                f'{path}[{index}] must be {{"type": "text", "text": …}}, got {shown(part)}',
                f"{path}[{index}]",
            )
        texts.append(_text(text, f"{path}[{index}]"))
    return "".join(texts)


def _text(text: str, path: str) -> str:
    check_text(text, path)
    return text


def check_text(text: str, path: str) -> None:
    """Refuse text that is no Unicode: a lone surrogate cannot be written as UTF-8.

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
