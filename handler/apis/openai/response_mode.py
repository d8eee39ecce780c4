"""The parts that the answers of a call may have, and the constraint on their text."""

from __future__ import annotations

from dataclasses import dataclass

from handler.input.constraints import Constraint
from handler.reply.reply_format import ReplyFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseMode:
    """The parts and the constraint of a call's answers.

    `reply_format` states what an output may have besides its text; None if all of it is text.
    `constraint` is the schema or grammar that the text, or the tool call, must match.
    """

    reply_format: ReplyFormat | None = None
    constraint: Constraint | None = None
