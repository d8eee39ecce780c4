"""Encode an answer as a message of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from common.json_object import JsonObject
from engine import FinishReason, Usage
from handler.generation.completed_answer import CompletedAnswer

_STOP_REASONS: Mapping[FinishReason, str] = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTENT_FILTER: "refusal",
}


class MessageUsage(TypedDict):
    """The token counts; `input_tokens` excludes the tokens that the cache had."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageStop(TypedDict):
    """Why a message ended."""

    stop_reason: str | None
    stop_sequence: str | None


class MessageEnvelope(TypedDict):
    """The fields of a message that are known before its first text."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str


class MessageBody(MessageEnvelope, MessageStop):
    """A whole message."""

    content: list[JsonObject]
    usage: MessageUsage


def encode_envelope(message_id: str, model: str) -> MessageEnvelope:
    """Return the fields of a message that are known before its first text."""
    return {"id": message_id, "type": "message", "role": "assistant", "model": model}


def encode_message(message_id: str, model: str, answer: CompletedAnswer) -> MessageBody:
    """Return a whole message."""
    reply = answer.reply
    content: list[JsonObject] = []
    if reply.reasoning:
        block = {"thinking": reply.reasoning, "signature": create_signature(message_id)}
        content.append({"type": "thinking", **block})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    for call in reply.calls:
        if (arguments := call.read_arguments()) is None:
            content.append({"type": "text", "text": call.to_json()})
            continue
        call_id = convert_call_id(call.id)
        content.append({"type": "tool_use", "id": call_id, "name": call.name, "input": arguments})
    return {
        **encode_envelope(message_id, model),
        "content": content or [{"type": "text", "text": ""}],
        **encode_stop(answer),
        "usage": encode_usage(answer.finish.usage),
    }


def encode_stop(answer: CompletedAnswer) -> MessageStop:
    """Return `stop_reason` and `stop_sequence`."""
    finish = answer.finish
    stop_sequence = None
    reason = _STOP_REASONS[finish.reason]
    if finish.reason is FinishReason.STOP:
        if answer.reply.calls:
            reason = "tool_use"
        elif isinstance(finish.stop_reason, str):
            reason, stop_sequence = "stop_sequence", finish.stop_reason
    return {"stop_reason": reason, "stop_sequence": stop_sequence}


def encode_usage(usage: Usage) -> MessageUsage:
    """Return the token counts; `input_tokens` excludes the tokens that the cache had."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def create_signature(message_id: str) -> str:
    """Return the signature of a thinking block: clients drop a block without one.

    This server does not check it: a client that changes the thinking only changes its own prompt.
    """
    return message_id.removeprefix("msg_")


def convert_call_id(call_id: str) -> str:
    """Return the id of a call with Anthropic's prefix."""
    return f"toolu_{call_id.removeprefix('call_')}"
