"""One generation whose tokens are sampled here, from the runtime's logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.backends.base import OnPiece
from engine.backends.rkllm.logits.sampler import Floats, Mask, SampledToken, Sampler
from engine.backends.rkllm.logits.vocabulary import Vocabulary
from engine.errors import RequestRejected
from engine.output import FinishReason, TokenLogprob
from engine.request import SamplingParams

if TYPE_CHECKING:
    # Not imported at run time: llguidance is optional.
    from engine.backends.rkllm.logits.grammar import Constraint


class SampledGeneration:
    """The state of one generation. Owned by the thread of the run.

    `free_tokens` is the number of tokens left in the context. `constraint` restricts the answer to
    a grammar. `tokens` counts the generated tokens; `reason` is valid once the answer has ended.

    Raises:
        RequestRejected: the sampling names an unknown token.
    """

    def __init__(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        vocabulary: Vocabulary,
        constraint: Constraint | None,
        free_tokens: int,
        on_piece: OnPiece,
    ) -> None:
        self._sampler = Sampler(sampling, prompt, vocabulary.size)
        self._vocabulary = vocabulary
        self._constraint = constraint
        self._free_tokens = free_tokens
        self._on_piece = on_piece
        self._reports_logprobs = sampling.logprobs is not None
        self._end_tokens = frozenset[int]() if sampling.ignore_eos else vocabulary.end_tokens
        self._min_tokens = sampling.min_tokens
        self._allowed_tokens = _build_mask(sampling.allowed_token_ids, vocabulary.size)
        self.tokens = 0
        self.reason = FinishReason.STOP

    def advance(self, logits: Floats) -> list[int]:
        """Sample the next token and deliver it, with the tokens that the grammar forces after it.

        Return the tokens that the model must compute next; empty when the answer has ended.

        Raises:
            RequestRejected: the grammar cannot be followed any further.
            BackendFailed: the logits contain no valid numbers.
        """
        constraint = self._constraint
        allowed = self._find_allowed_tokens()
        sampled = self._sampler.sample(logits, allowed)
        if sampled.token in self._end_tokens:
            return []
        tokens = [sampled.token]
        if constraint is not None:
            # Log-probabilities are reported for each token, so the model must compute each token.
            forced = constraint.advance(sampled.token, fast_forward=not self._reports_logprobs)
            self._sampler.record_tokens(forced)
            tokens += forced
        free_tokens, logprob = self._free_tokens - self.tokens, self._build_logprob(sampled)
        for token in tokens[:free_tokens]:
            self.tokens += 1
            if self._on_piece(self._vocabulary.piece(token), token, logprob):
                return []
        if constraint is not None and constraint.is_complete and len(tokens) <= free_tokens:
            return []
        if len(tokens) >= free_tokens:
            self.reason = FinishReason.LENGTH
            return []
        return tokens

    def _find_allowed_tokens(self) -> Mask | None:
        """Return a mask of the tokens that may come next; None if any may."""
        allowed = self._allowed_tokens
        if self._constraint is not None:
            # A grammar says itself where the answer may end.
            followers = self._constraint.allowed_tokens()
            return followers if allowed is None else followers & allowed
        if self.tokens >= self._min_tokens:
            return allowed
        size = self._vocabulary.size
        mask = np.ones(size, np.bool_) if allowed is None else allowed.copy()
        mask[[*self._end_tokens]] = False
        return mask

    def _build_logprob(self, sampled: SampledToken) -> TokenLogprob | None:
        if not self._reports_logprobs:
            return None
        return TokenLogprob(
            self._vocabulary.text(sampled.token),
            sampled.logprob,
            tuple((self._vocabulary.text(token), logprob) for token, logprob in sampled.top),
        )


def _build_mask(tokens: Sequence[int], size: int) -> Mask | None:
    """Return a mask of these tokens; None for no tokens. Raises RequestRejected."""
    if not tokens:
        return None
    if (highest := max(tokens)) >= size:
        raise RequestRejected(
            f"allowed_token_ids: there is no token {highest}, the last one is {size - 1}",
            param="allowed_token_ids",
        )
    mask = np.zeros(size, np.bool_)
    mask[[*tokens]] = True
    return mask
