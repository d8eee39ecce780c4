"""Sample the next token from a model's logits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.errors import BackendFailed, RequestRejected
from engine.request import SamplingParams

Floats: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = NDArray[np.intp]
Mask: TypeAlias = NDArray[np.bool_]

# How many of the most likely tokens are sorted first for top_p. They nearly always hold nearly all
# of the probability; sorting a whole vocabulary takes twenty times as long.
_PRESORT_TOKENS = 1024
_MIN_LOGPROB = -9999.0
_BLOCK_TOKENS = 512
# Dividing by a lower temperature would overflow (the same limit as vLLM's).
_MIN_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token, its log-probability, and the most likely tokens with theirs if requested."""

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Samples the tokens of one answer, with parameters defined as by OpenAI and vLLM.

    The order is vLLM's: logit bias, penalties, allowed tokens, temperature, min_p, top_k, top_p,
    random choice. Log-probabilities are the model's own, before any of these. The same seed and
    logits give the same tokens. Owned by the thread of the run.

    Raises:
        RequestRejected: `logit_bias` names an unknown token.
    """

    def __init__(self, sampling: SamplingParams, prompt: Sequence[int], size: int) -> None:
        self._sampling = sampling
        bias = sampling.logit_bias
        if unknown := [token for token in bias if token >= size]:
            raise RequestRejected(
                f"logit_bias: there is no token {unknown[0]}, the last one is {size - 1}",
                param="logit_bias",
            )
        self._bias_ids = np.fromiter(bias, np.intp, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        # repetition_penalty covers prompt and answer, the other penalties only the answer.
        self._in_prompt_or_answer = np.zeros(size, np.bool_)
        self._in_prompt_or_answer[[token for token in prompt if token < size]] = True
        self._in_answer = np.zeros(size, np.bool_)
        self._counts = np.zeros(size, np.float32)
        # Most requests have no bias and no penalty, and copying a row means half a megabyte.
        penalties = sampling.frequency_penalty or sampling.presence_penalty
        self._adjusts_logits = bool(bias or penalties or sampling.repetition_penalty != 1)
        seed = None if sampling.seed is None else sampling.seed % 2**64
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def sample(self, logits: Floats, allowed: Mask | None = None) -> SampledToken:
        """Return the next token; `logits` has one value per token of the vocabulary.

        `allowed` is a mask of the tokens that may come next; None allows all.

        Raises:
            BackendFailed: the logits are NaN or infinite, or exclude every allowed token.
        """
        if not math.isfinite(float(logits.max())):
            # If one value is NaN, `max` returns NaN.
            raise BackendFailed("the RKLLM runtime gave logits that are no numbers")
        scores = self._adjust_logits(logits) if self._adjusts_logits else logits
        if allowed is not None:
            # Usually only a few candidates remain, so sampling is cheap.
            allowed_ids = np.flatnonzero(allowed & (scores > -np.inf))
            if not allowed_ids.size:
                raise BackendFailed("the model knows none of the tokens that have to come next")
            token = int(allowed_ids[self._sample_index(scores[allowed_ids])])
        else:
            token = self._sample_index(scores)
        self.record_tokens((token,))
        if self._sampling.logprobs is None:
            return SampledToken(token)
        return _with_logprobs(token, logits, self._sampling.logprobs)

    def _sample_index(self, scores: Floats) -> int:
        """Return the index of the sampled score."""
        sampling = self._sampling
        is_greedy = sampling.temperature < _MIN_TEMPERATURE
        if is_greedy or sampling.top_p == 0 or sampling.top_k == 1:
            return int(scores.argmax())
        ids, weights = candidates(
            scores,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
        )
        return self._draw(ids, weights)

    def record_tokens(self, tokens: Iterable[int]) -> None:
        """Record generated tokens for the penalties; `sample` records its own token."""
        for token in tokens:
            self._in_prompt_or_answer[token] = self._in_answer[token] = True
            self._counts[token] += 1

    def _adjust_logits(self, logits: Floats) -> Floats:
        """Return a copy of the logits with bias and penalties applied."""
        sampling = self._sampling
        scores = logits.copy()
        if self._bias_ids.size:
            scores[self._bias_ids] += self._bias
        if (penalty := sampling.repetition_penalty) != 1:
            ids = np.flatnonzero(self._in_prompt_or_answer)
            previous = scores[ids]
            scores[ids] = np.where(previous > 0, previous / penalty, previous * penalty)
        if sampling.frequency_penalty or sampling.presence_penalty:
            ids = np.flatnonzero(self._in_answer)
            scores[ids] -= (
                sampling.frequency_penalty * self._counts[ids] + sampling.presence_penalty
            )
        return scores

    def _draw(self, ids: Ids, weights: Floats) -> int:
        # In blocks: cumulative sums over a whole vocabulary would take longer than everything else.
        starts = np.arange(0, len(weights), _BLOCK_TOKENS)
        blocks = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
        threshold = self._rng.random() * float(blocks[-1])
        block = _first_above(blocks, threshold)
        weight_before = float(blocks[block - 1]) if block else 0.0
        start = block * _BLOCK_TOKENS
        block_sums = np.cumsum(weights[start : start + _BLOCK_TOKENS], dtype=np.float64)
        return int(ids[start + _first_above(block_sums, threshold - weight_before)])


def _first_above(sums: NDArray[np.float64], value: float) -> int:
    """Return the index of the first cumulative sum above a value; its weight is never 0."""
    return int(np.searchsorted(sums, min(value, math.nextafter(sums[-1], 0.0)), side="right"))


def candidates(
    scores: Floats, *, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[Ids, Floats]:
    """Return the candidate tokens, and weights in proportion to their probabilities.

    Of equally likely tokens, the lower id ranks higher. If top_k, top_p or min_p excludes tokens,
    the most likely comes first; otherwise they are ordered by id.
    """
    size = len(scores)
    count = min(top_k, size) if top_k > 0 else size
    max_score = float(scores.max())
    if top_p >= 1 and min_p <= 0 and count == size:
        return np.arange(size), _weights(scores, max_score, temperature)
    if top_p >= 1:
        return _top_candidates(scores, count, max_score, temperature, min_p)
    if count == size > _PRESORT_TOKENS:
        ids, weights = _top_candidates(scores, _PRESORT_TOKENS, max_score, temperature, min_p)
        min_score = _min_p_score(max_score, temperature, min_p)
        total = float(
            _weights(scores[scores >= min_score], max_score, temperature).sum(dtype=np.float64)
        )
        if float(weights.sum(dtype=np.float64)) >= top_p * total:
            return _cut_at_weight(ids, weights, top_p * total)
    ids, weights = _top_candidates(scores, count, max_score, temperature, min_p)
    return _cut_at_weight(ids, weights, top_p * float(weights.sum(dtype=np.float64)))


def _cut_at_weight(ids: Ids, weights: Floats, target: float) -> tuple[Ids, Floats]:
    """Return the shortest prefix whose total weight reaches `target`, at least one token."""
    count = int(np.searchsorted(np.cumsum(weights, dtype=np.float64), target, side="left")) + 1
    return ids[:count], weights[:count]


def _top_candidates(
    scores: Floats, count: int, max_score: float, temperature: float, min_p: float
) -> tuple[Ids, Floats]:
    """Return the `count` most likely tokens that min_p allows, the most likely first."""
    if min_p <= 0:
        ids = most_likely_ids(scores, count)
    else:
        # min_p first: it leaves few tokens, and sorting takes the most time.
        ids = np.flatnonzero(scores >= _min_p_score(max_score, temperature, min_p))
        ids = ids[most_likely_ids(scores[ids], count)]
    return ids, _weights(scores[ids], max_score, temperature)


def _min_p_score(max_score: float, temperature: float, min_p: float) -> float:
    """Return the lowest score of a token that is `min_p` times as likely as the most likely."""
    return max_score + math.log(min_p) * temperature if min_p > 0 else -math.inf


def _weights(scores: Floats, max_score: float, temperature: float) -> Floats:
    weights: Floats = np.exp((scores - np.float32(max_score)) / np.float32(temperature))
    return weights


def most_likely_ids(scores: Floats, count: int) -> Ids:
    """Return the ids of the highest scores, highest first; equal scores are ordered by id."""
    size = len(scores)
    if count < size:
        # Ordered by id, so that among equal scores at the edge the lower ids remain.
        edge = np.partition(scores, size - count)[size - count]
        above = np.flatnonzero(scores > edge)
        ids = np.concatenate((above, np.flatnonzero(scores == edge)[: count - len(above)]))
    else:
        ids = np.arange(size)
    # A stable sort keeps equal scores in the order of their ids.
    ranked: Ids = ids[np.argsort(-scores[ids], kind="stable")]
    return ranked


def _with_logprobs(token: int, logits: Floats, alternatives: int) -> SampledToken:
    max_score = float(logits.max())
    total = max_score + math.log(float(np.exp(logits - max_score).sum(dtype=np.float64)))

    def logprob(token_id: int) -> float:
        return min(max(float(logits[token_id]) - total, _MIN_LOGPROB), 0.0)

    ids = most_likely_ids(logits, min(alternatives, len(logits))) if alternatives else ()
    top = tuple((int(token_id), logprob(int(token_id))) for token_id in ids)
    return SampledToken(token, logprob(token), top)
