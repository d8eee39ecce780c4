"""`/v1/chat/completions`: a conversation in, the assistant's next turn out (R33-R36)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine import Chat
from handler.errors import InvalidRequest
from handler.messages import read_messages
from handler.openai.codec import Shape
from handler.sampling import shown


def _chat(body: Mapping[str, Any]) -> Chat:
    template = body.get("chat_template_kwargs") or {}
    if not isinstance(template, dict):
        raise InvalidRequest(
            f"chat_template_kwargs must be an object, got {shown(template)}", "chat_template_kwargs"
        )
    return Chat(read_messages(body.get("messages")), template)


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
