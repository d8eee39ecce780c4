"""Encode an assistant's message: whole, or part by part for a stream."""

from __future__ import annotations

from typing import Any

from common.json_object import JsonObject
from engine.reply.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from handler.generation.completed_answer import CompletedAnswer


def encode_message(answer: CompletedAnswer, echo: str) -> JsonObject:
    """Return the message of an answer; `echo` is text before it."""
    reply, content = answer.reply, echo + answer.text
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content if content or not reply.calls else None,
        "refusal": None,
    }
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    return message


def encode_message_delta(part: Part) -> JsonObject:
    """Return the delta of a message for one part of a reply."""
    match part:
        case ReasoningPart(text):
            return {"reasoning_content": text}
        case TextPart(text):
            return {"content": text}
        case CallStart(name, index, call_id):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case CallArguments(text, index):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
