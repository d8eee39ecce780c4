"""`/v1/chat/completions`: a conversation in, the assistant's next turn out (R33-R36)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from engine import Chat
from handler.errors import InvalidRequest
from handler.messages import read_messages
from handler.openai.codec import Shape
from handler.sampling import shown


def _chat(body: Mapping[str, Any]) -> Chat:
    template = body.get("chat_template_kwargs")
    if template is None:
        template = {}
    if not isinstance(template, dict) or not _is_plain(template):
        raise InvalidRequest(
            "chat_template_kwargs must be an object of Unicode text, numbers of up to 64 bits and "
            f"not too many levels, got {shown(template)}",
            "chat_template_kwargs",
        )
    return Chat(read_messages(body.get("messages")), template)


def _is_plain(template: dict[str, Any]) -> bool:
    """Whether it can cross to the engine's process, which Python's own JSON does not ensure."""
    try:
        orjson.dumps(template)
    except TypeError:
        return False
    return True


CHAT = Shape(
    id_prefix="chatcmpl",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    prompt=_chat,
    text=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    chunk=lambda text: b'"delta":{"content":' + text + b"}",
    opening_choice={"delta": {"role": "assistant", "content": ""}},
    last_choice={"delta": {}},
)
