"""What the answers of a call consist of, and what they are held to."""

from __future__ import annotations

from dataclasses import dataclass

from handler.constraints import Constraint
from handler.reply.reply_format import ReplyFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseMode:
    """The structure of a call's answers.

    `reply_format` states what an output may have besides its text; None if all of it is text.
    `constraint` is what the text, or the tool call, is held to.
    """

    reply_format: ReplyFormat | None = None
    constraint: Constraint | None = None
