"""The manner of an answer: in JSON, by calling functions, with its thoughts apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.reasoning import THINK_OPEN
from handler.openai.reply import ReplyParser
from handler.openai.tools import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseMode:
    """What a call says of its answers beyond their length and sampling.

    `reads` says whether texts may have more in them than what is said; `thinking` that the template
    opens the model's thoughts, `schema` what the text must fit.
    """

    reads: bool = False
    tools: Tools = field(default_factory=Tools)
    thinking: bool = False
    schema: Mapping[str, Any] | None = None

    def reply(self, beginning: str) -> ReplyParser | None:
        """Return a reader for a text that begins so; None where it is all content."""
        if not self.reads:
            return None
        if self.tools.told or self.thinking:
            return ReplyParser(self.tools, thinking=self.thinking)
        begun = beginning.lstrip()
        thinks = begun.startswith(THINK_OPEN) or (begun and THINK_OPEN.startswith(begun))
        return ReplyParser(self.tools) if thinks else None
