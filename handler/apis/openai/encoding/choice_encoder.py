"""Encode one choice of a response that is not streamed, and the finish reason."""

from __future__ import annotations

from typing import Any

from common.json_object import JsonObject
from engine import Finish, FinishReason
from handler.apis.core.parameters import Parameters
from handler.apis.openai.echo import Echo
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.apis.openai.logprobs import answer_logprobs
from handler.generation.completed_answer import CompletedAnswer


def encode_choice(
    answer: CompletedAnswer, echo: Echo, spec: EndpointSpec, parameters: Parameters
) -> JsonObject:
    """Return a choice of a response that is not streamed, without its `index`."""
    logprobs = None
    # `logprobs` is null, not empty, if there is text and the engine reports no log-probabilities.
    has_logprobs = answer.logprobs or echo.tokens or not answer.output
    if parameters.logprobs is not None and has_logprobs:
        logprobs = spec.encode_logprobs(
            answer_logprobs(answer),
            parameters.logprobs,
            len(echo.text),
            echo.tokens,
        )
    finish = encode_finish(answer.finish, has_calls=bool(answer.reply.calls))
    return {**spec.encode_answer(answer, echo.text), "logprobs": logprobs, **finish}


def encode_finish(finish: Finish, *, has_calls: bool) -> JsonObject:
    """Return a choice's `finish_reason`, `tool_calls` if it has any, and its `stop_reason`."""
    is_call = has_calls and finish.reason is FinishReason.STOP
    encoded: dict[str, Any] = {"finish_reason": "tool_calls" if is_call else finish.reason.value}
    if finish.stop_reason is not None:
        encoded["stop_reason"] = finish.stop_reason
    return encoded
