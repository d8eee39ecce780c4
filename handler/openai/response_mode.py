"""How to read the text of an answer: as plain content, JSON, reasoning or tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.reasoning import THINK_OPEN
from handler.openai.reply_parser import ReplyParser
from handler.openai.tools import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseMode:
    """The structure of a call's answers.

    `parses_reply` means that a text may contain reasoning or tool calls besides its content.
    `starts_in_reasoning` means that the chat template opens the model's reasoning itself. `schema`
    is the JSON Schema that the text must match.
    """

    parses_reply: bool = False
    tools: Tools = field(default_factory=Tools)
    starts_in_reasoning: bool = False
    schema: Mapping[str, Any] | None = None

    def create_parser(self, text_start: str) -> ReplyParser | None:
        """Return a parser for a text with this start; None if the text is all content."""
        if not self.parses_reply:
            return None
        if self.tools.definitions or self.starts_in_reasoning:
            return ReplyParser(self.tools, starts_in_reasoning=self.starts_in_reasoning)
        start = text_start.lstrip()
        may_be_reasoning = start.startswith(THINK_OPEN) or (start and THINK_OPEN.startswith(start))
        return ReplyParser(self.tools) if may_be_reasoning else None
