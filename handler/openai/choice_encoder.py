"""One choice of a body, whole, and how one ends in either way (R3, R35)."""

from __future__ import annotations

from typing import Any

from engine import Finish, FinishReason
from handler.completed_answer import Answer
from handler.openai.echo import Echo
from handler.openai.endpoint_spec import Shape
from handler.openai.logprobs import within
from handler.openai.parameters import Parameters
from handler.openai.reply import Reply
from handler.openai.response_mode import Manner


def whole_choice(
    answer: Answer, echo: Echo, shape: Shape, parameters: Parameters, manner: Manner
) -> dict[str, Any]:
    """Return what a body that is not streamed says of one answer, but for its index."""
    logprobs = None
    # Null rather than empty where there is text and the engine told nothing of it.
    told = answer.logprobs or echo.pieces or not answer.raw_text
    if parameters.logprobs is not None and told:
        logprobs = shape.logprobs(
            within(answer.logprobs, len(answer.raw_text)),
            parameters.logprobs,
            len(echo.text),
            echo.pieces,
        )
    said = echo.text + answer.text
    reply = manner.reply(said)
    if reply is None:
        message = shape.text(said)
    else:
        reply.push(said)
        reply.close()
        message = {"message": reply.message()}
    return {**message, "logprobs": logprobs, **ending(answer.finish, reply)}


def ending(finish: Finish, reply: Reply | None) -> dict[str, Any]:
    """Return why a choice ended; calls of functions are a reason of their own."""
    called = reply is not None and reply.calls and finish.reason is FinishReason.STOP
    ending: dict[str, Any] = {"finish_reason": "tool_calls" if called else finish.reason.value}
    if finish.stop_reason is not None:
        ending["stop_reason"] = finish.stop_reason
    return ending
