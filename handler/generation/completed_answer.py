"""One completed answer, before it is encoded for jobs or for OpenAI clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine import Finish, FinishReason, TokenLogprob
from engine.reply.reply import Reply
from validation import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedAnswer:
    """One completed answer.

    `reply` is the model's output taken apart; `text` is its text for the client, sanitized.
    `deltas` are the model's output in order: joined they are its reasoning with the marks, and its
    raw text, after redaction. `redacted` counts the removed personal data by kind.
    `hidden_logprobs` belong to tokens that would spell out redacted text: they rank the
    answer but are never returned. `created` is in seconds since the epoch. `discarded` is the
    answer that this one replaces after a regeneration.
    """

    id: str
    model: str
    created: int
    reply: Reply
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
    def output(self) -> str:
        """All that the model wrote, before sanitizing."""
        return "".join(self.deltas)

    @property
    def reasoning_tokens(self) -> int:
        """The number of tokens of the reasoning and its marks, of which each has text.

        The engine's own count has precedence: the pieces of a server's answer are no tokens, and
        may be more than the tokens of the answer.
        """
        if (counted := self.finish.usage.reasoning_tokens) is not None:
            return counted
        position = tokens = 0
        for delta in self.deltas:
            if position >= self.reply.reasoning_end:
                break
            position += len(delta)
            tokens += 1
        return min(tokens, self.finish.usage.completion_tokens)

    @property
    def sanitized(self) -> bool:
        """Whether validation changed the text."""
        return self.text != self.reply.text

    @property
    def blocked(self) -> bool:
        """Whether the request was blocked, so nothing was generated."""
        return self.finish.reason is FinishReason.CONTENT_FILTER
