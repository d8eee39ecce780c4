"""The output of an engine: deltas while a generation runs, and one finish at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple


class FinishReason(StrEnum):
    """Why an answer ended, with OpenAI's values."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token, its log-probability (never above 0) and the likeliest alternatives.

    `raw` are its bytes, which may end inside a character. `offset` is where they begin in the
    answer's text, in characters.
    """

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()
    raw: bytes = b""
    offset: int = 0


class PromptToken(NamedTuple):
    """One token of a prompt, its log-probability given those before it, and the likeliest ones.

    The first token has no log-probability. `text` is the characters that end in this token.
    `token_id` and `rank`, 1 for the likeliest, are those of the token; `top_ids` belong to `top`.
    """

    text: str
    logprob: float | None = None
    top: tuple[tuple[str, float], ...] = ()
    token_id: int = -1
    rank: int = 1
    top_ids: tuple[int, ...] = ()

    @classmethod
    def from_wire(cls, values: Sequence[Any]) -> PromptToken:
        """Make a token of the lists in which a host process returns it."""
        text, logprob, top, token_id, rank, top_ids = values
        named = tuple((name, value) for name, value in top)
        return cls(text, logprob, named, token_id, rank, tuple(top_ids))


class Delta(NamedTuple):
    """The new text of one token; empty while it is held back as a possible stop string.

    A tuple, because one is made per token and a frozen dataclass takes three times as long.
    """

    text: str
    logprob: TokenLogprob | None = None


# The same as `Delta(text, logprob)` in less than two thirds of the time.
new_delta: Callable[[tuple[str, TokenLogprob | None]], Delta] = partial(tuple.__new__, Delta)


@dataclass(frozen=True, slots=True)
class Embedding:
    """The embedding of a text, a vector of length 1, and the number of its tokens."""

    vector: Sequence[float]
    tokens: int


@dataclass(frozen=True, slots=True)
class Relevance:
    """How relevant a document is to a query; higher is better. `tokens` were read for it."""

    score: float
    tokens: int


class Usage(NamedTuple):
    """Token counts of the engine; `cached_tokens` of the prompt were not prefilled.

    `reasoning_tokens` of the completion are reasoning; None if the engine's pieces are to be
    counted.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


class Timings(NamedTuple):
    """Where a request's time went, in milliseconds of wall clock.

    `queue_ms` is the wait for a slot, and `load_ms` the wait for the model to load, 0 if it was
    loaded already. `reload_ms` is the time to load the model again, where that is the only way to
    change its sampling. Of the prompt, `reused_tokens` were in the engine's cache, and
    `prefilled_tokens` were computed.
    """

    queue_ms: float = 0.0
    load_ms: float = 0.0
    reload_ms: float = 0.0
    prefill_ms: float = 0.0
    first_token_ms: float = 0.0
    generate_ms: float = 0.0
    total_ms: float = 0.0
    tokens_per_second: float = 0.0
    reused_tokens: int = 0
    prefilled_tokens: int = 0


class Finish(NamedTuple):
    """The end of an answer: its reason, token counts and timings.

    `stop_reason` is the stop string or stop token id that ended it, None for an end-of-sequence
    token or a length limit (vLLM's meaning). `grammar_break` is after how many characters the
    answer left the grammar that was to hold it; None if it did not. `warnings` are those of the
    backend about the finished answer.

    A tuple, like `usage` and `timings`, for speed: all three are made for each answer in both
    processes.
    """

    reason: FinishReason
    usage: Usage
    stop_reason: str | int | None = None
    timings: Timings = Timings()
    grammar_break: int | None = None
    warnings: tuple[str, ...] = ()

    def to_wire(self) -> list[Any]:
        """Return the finish as JSON-ready values, the inverse of `from_wire`."""
        usage = self.usage
        return [
            self.reason.value,
            self.stop_reason,
            [*usage],
            self.timings.prefill_ms,
            self.timings.reload_ms,
            self.timings.first_token_ms,
            self.grammar_break,
            [*self.warnings],
        ]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> Finish:
        """Rebuild a finish from `to_wire`, which has only the timings of the host process."""
        (
            *(reason, stop_reason, usage, prefill_ms, reload_ms, first_token_ms, grammar_break),
            warnings,
        ) = wire
        timings = Timings(prefill_ms=prefill_ms, reload_ms=reload_ms, first_token_ms=first_token_ms)
        return cls(
            _REASONS[reason], Usage(*usage), stop_reason, timings, grammar_break, tuple(warnings)
        )


# A dict lookup is faster than `FinishReason(value)`.
_REASONS = {reason.value: reason for reason in FinishReason}
