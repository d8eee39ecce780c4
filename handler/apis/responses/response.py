"""Encode the response object: the request's parameters, the status, the output and the usage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from common.json_object import JsonObject
from engine import FinishReason
from handler.apis.responses.request import ResponseRequest
from handler.generation.completed_answer import CompletedAnswer
from handler.response import encode_verdict

ID_PREFIX = "resp_"
# A response that is not in the background is only ever completed or incomplete.
STATUSES = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")


def new_response_id() -> str:
    """Return a random id."""
    return ID_PREFIX + os.urandom(24).hex()


def encode_envelope(request: ResponseRequest, response_id: str, created: int) -> JsonObject:
    """Return a response that has just been started, with all members of the request."""
    body, sampling = request.body, request.call.parameters.sampling
    text = body.get("text") or {}
    reasoning = body.get("reasoning") or {}
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "background": request.background,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls"),
        "metadata": body.get("metadata") or {},
        "model": request.call.model,
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": request.previous_id,
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": "default",
        "store": request.is_stored,
        "temperature": sampling.temperature,
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [_encode_tool(tool) for tool in body.get("tools") or ()],
        "top_logprobs": 0,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "truncation": request.truncation,
        "usage": None,
        "user": body.get("user"),
    }


def _encode_tool(tool: JsonObject) -> JsonObject:
    """Return a tool with all members that Open Responses requires of a function."""
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


def encode_ended(
    envelope: JsonObject,
    answer: CompletedAnswer,
    output: Sequence[JsonObject],
    completed: int,
) -> JsonObject:
    """Return the completed, or incomplete, response."""
    ended: dict[str, Any] = {**envelope, "output": list(output), "usage": encode_usage(answer)}
    reason = incomplete_reason(answer)
    if reason is None:
        ended |= {"status": "completed", "completed_at": completed}
    else:
        ended |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
    if answer.warnings:
        ended["warnings"] = [*dict.fromkeys(answer.warnings)]
    return ended | encode_verdict(answer)


def incomplete_reason(answer: CompletedAnswer) -> str | None:
    """Return why an answer is incomplete; None if it is complete."""
    match answer.finish.reason:
        case FinishReason.LENGTH:
            return "max_output_tokens"
        case FinishReason.CONTENT_FILTER:
            return "content_filter"
        case _:
            return None


def encode_usage(answer: CompletedAnswer) -> JsonObject:
    """Return the token counts of an answer."""
    usage = answer.finish.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
