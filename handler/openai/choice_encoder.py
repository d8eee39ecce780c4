"""Encode one choice of a response that is not streamed, and the finish reason (R3, R35)."""

from __future__ import annotations

from typing import Any

from engine import Finish, FinishReason
from handler.completed_answer import CompletedAnswer
from handler.openai.echo import Echo
from handler.openai.endpoint_spec import EndpointSpec
from handler.openai.logprobs import logprobs_within
from handler.openai.parameters import Parameters
from handler.openai.reply_parser import ReplyParser
from handler.openai.response_mode import ResponseMode


def encode_choice(
    answer: CompletedAnswer,
    echo: Echo,
    spec: EndpointSpec,
    parameters: Parameters,
    response_mode: ResponseMode,
) -> dict[str, Any]:
    """Return a choice of a response that is not streamed, without its `index`."""
    logprobs = None
    # `logprobs` is null, not empty, if there is text and the engine reports no log-probabilities.
    has_logprobs = answer.logprobs or echo.pieces or not answer.raw_text
    if parameters.logprobs is not None and has_logprobs:
        logprobs = spec.encode_logprobs(
            logprobs_within(answer.logprobs, len(answer.raw_text)),
            parameters.logprobs,
            len(echo.text),
            echo.pieces,
        )
    text = echo.text + answer.text
    parser = response_mode.create_parser(text)
    if parser is None:
        message = spec.encode_text(text)
    else:
        parser.push(text)
        parser.close(is_cut=answer.finish.reason is FinishReason.LENGTH)
        message = {"message": parser.message()}
    return {**message, "logprobs": logprobs, **encode_finish(answer.finish, parser)}


def encode_finish(finish: Finish, parser: ReplyParser | None) -> dict[str, Any]:
    """Return a choice's `finish_reason`, `tool_calls` if it has any, and its `stop_reason`."""
    has_calls = parser is not None and parser.calls and finish.reason is FinishReason.STOP
    encoded: dict[str, Any] = {"finish_reason": "tool_calls" if has_calls else finish.reason.value}
    if finish.stop_reason is not None:
        encoded["stop_reason"] = finish.stop_reason
    return encoded
