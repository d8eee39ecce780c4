"""One choice of a body, whole, and how one ends in either way (R3, R35)."""

from __future__ import annotations

from typing import Any

from engine import Finish, FinishReason
from handler.completed_answer import Answer
from handler.openai.echo import Echo
from handler.openai.endpoint_spec import EndpointSpec
from handler.openai.logprobs import logprobs_within
from handler.openai.parameters import Parameters
from handler.openai.reply import ReplyParser
from handler.openai.response_mode import ResponseMode


def encode_choice(
    answer: Answer,
    echo: Echo,
    spec: EndpointSpec,
    parameters: Parameters,
    response_mode: ResponseMode,
) -> dict[str, Any]:
    """Return what a body that is not streamed says of one answer, but for its index."""
    logprobs = None
    # Null rather than empty where there is text and the engine told nothing of it.
    told = answer.logprobs or echo.pieces or not answer.raw_text
    if parameters.logprobs is not None and told:
        logprobs = spec.encode_logprobs(
            logprobs_within(answer.logprobs, len(answer.raw_text)),
            parameters.logprobs,
            len(echo.text),
            echo.pieces,
        )
    said = echo.text + answer.text
    reply = response_mode.reply(said)
    if reply is None:
        message = spec.encode_text(said)
    else:
        reply.push(said)
        reply.close()
        message = {"message": reply.message()}
    return {**message, "logprobs": logprobs, **encode_finish(answer.finish, reply)}


def encode_finish(finish: Finish, reply: ReplyParser | None) -> dict[str, Any]:
    """Return why a choice ended; calls of functions are a reason of their own."""
    called = reply is not None and reply.calls and finish.reason is FinishReason.STOP
    encode_finish: dict[str, Any] = {
        "finish_reason": "tool_calls" if called else finish.reason.value
    }
    if finish.stop_reason is not None:
        encode_finish["stop_reason"] = finish.stop_reason
    return encode_finish
