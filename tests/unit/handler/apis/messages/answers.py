"""Completed answers for tests."""

from __future__ import annotations

from engine import Finish, FinishReason, Usage
from engine.reply.parser import read_reply
from engine.reply.reply_format import ReplyFormat
from handler.generation.completed_answer import CompletedAnswer

USAGE = Usage(3, 5)
REPLY_FORMAT = ReplyFormat(functions={"add": {"type": "object"}})


def complete(
    output: str,
    reason: FinishReason = FinishReason.STOP,
    usage: Usage = USAGE,
    stop_reason: str | int | None = None,
) -> CompletedAnswer:
    """Return the answer of a model that wrote `output`."""
    reply = read_reply(output, REPLY_FORMAT)
    return CompletedAnswer(
        id="chatcmpl-1",
        model="tiny",
        created=0,
        reply=reply,
        text=reply.text,
        deltas=(output,),
        finish=Finish(reason, usage, stop_reason),
        streaming=False,
    )
