"""One finished answer, before any door puts it into its own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine import Finish, FinishReason, TokenLogprob
from validation import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedAnswer:
    """One finished answer.

    `text` is what the client gets, after sanitising; `deltas` are the model's own words as they
    came, which joined are its raw text (R46), without what was `redacted`, counted by kind.
    `hidden_logprobs` are those of tokens that would spell it out: they rank an answer and are never
    told. `created` is seconds since the epoch. `discarded` is the answer that this one was
    generated again for.
    """

    id: str
    model: str
    created: int
    text: str
    deltas: tuple[str, ...]
    finish: Finish
    streaming: bool
    logprobs: tuple[TokenLogprob, ...] = ()
    hidden_logprobs: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()
    verdict: Verdict | None = None
    redacted: Mapping[str, int] = field(default_factory=dict)
    discarded: CompletedAnswer | None = None

    @property
    def raw_text(self) -> str:
        """The model's text before sanitising."""
        return "".join(self.deltas)

    @property
    def sanitized(self) -> bool:
        """Whether validation changed the text (R47)."""
        return self.text != self.raw_text

    @property
    def blocked(self) -> bool:
        """Whether the request was refused, and nothing generated (R56)."""
        return self.finish.reason is FinishReason.CONTENT_FILTER
