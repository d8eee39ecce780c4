"""What the answers of a call consist of, and what they must match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handler.reply.reply_format import ReplyFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseMode:
    """The structure of a call's answers.

    `reply_format` states what an output may have besides its text; None if all of it is text.
    `schema` is the JSON Schema that the text, or the tool call, must match.
    """

    reply_format: ReplyFormat | None = None
    schema: Mapping[str, Any] | None = None
