"""Which token comes next, chosen here out of a model's logits."""

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

# Of the likeliest tokens, so many are sorted first: they hold nearly all of the probability nearly
# always, and sorting a whole vocabulary takes twenty times as long.
_FIRST_LOOK = 1024
_LEAST_LOGPROB = -9999.0
_BLOCK = 512
# Divided by, a lower temperature is beyond what the numbers can hold (vLLM's limit).
_LEAST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class Picked:
    """A token, the model's log-probability of it, and the likeliest with theirs if asked for."""

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses the tokens of one answer, by OpenAI's and vLLM's meanings, in vLLM's order.

    Bias, penalties, what is allowed, temperature, min_p, top_k, top_p, the dice. Log-probabilities
    are the model's own, before any of it. The same seed makes the same choices of the same logits.
    Owned by the thread of the run.

    Raises:
        RequestRejected: `logit_bias` names a token that is not there.
    """

    def __init__(self, sampling: SamplingParams, prompt: Sequence[int], size: int) -> None:
        self._sampling = sampling
        bias = sampling.logit_bias
        if unknown := [token for token in bias if token >= size]:
            raise RequestRejected(
                f"logit_bias: there is no token {unknown[0]}, the last one is {size - 1}",
                param="logit_bias",
            )
        self._biased = np.fromiter(bias, np.intp, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        # Of the prompt and the answer, which repetition_penalty is about; of the answer alone.
        self._seen = np.zeros(size, np.bool_)
        self._seen[[token for token in prompt if token < size]] = True
        self._said = np.zeros(size, np.bool_)
        self._counts = np.zeros(size, np.float32)
        # Most requests ask for no bias and no penalty, and a row has half a megabyte to copy.
        penalties = sampling.frequency_penalty or sampling.presence_penalty
        self._changes = bool(bias or penalties or sampling.repetition_penalty != 1)
        seed = None if sampling.seed is None else sampling.seed % 2**64
        self._dice = np.random.Generator(np.random.PCG64(seed))

    def pick(self, logits: Floats, allowed: Mask | None = None) -> Picked:
        """Return the next token; `logits` has a number for each token there is.

        `allowed` says of each whether it may come, None that all may.

        Raises:
            BackendFailed: the numbers are none to choose by.
        """
        if not math.isfinite(float(logits.max())):
            # Also where one of them is no number: it is then the greatest.
            raise BackendFailed("the RKLLM runtime gave logits that are no numbers")
        scores = self._changed(logits) if self._changes else logits
        if allowed is not None:
            # Most often a few, among which the choice is a fraction of the work.
            there = np.flatnonzero(allowed & (scores > -np.inf))
            if not there.size:
                raise BackendFailed("the model knows none of the tokens that have to come next")
            token = int(there[self._chosen(scores[there])])
        else:
            token = self._chosen(scores)
        self.count((token,))
        if self._sampling.logprobs is None:
            return Picked(token)
        return _told(token, logits, self._sampling.logprobs)

    def _chosen(self, scores: Floats) -> int:
        """Return which of these it is."""
        sampling = self._sampling
        cold = sampling.temperature < _LEAST_TEMPERATURE
        if cold or sampling.top_p == 0 or sampling.top_k == 1:
            return int(scores.argmax())
        ids, weights = candidates(
            scores,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
        )
        return self._thrown(ids, weights)

    def count(self, tokens: Iterable[int]) -> None:
        """Have penalties know of tokens that are said; of what was picked they do."""
        for token in tokens:
            self._seen[token] = self._said[token] = True
            self._counts[token] += 1

    def _changed(self, logits: Floats) -> Floats:
        """Return the logits after bias and penalties, in memory of their own."""
        sampling = self._sampling
        scores = logits.copy()
        if self._biased.size:
            scores[self._biased] += self._bias
        if (penalty := sampling.repetition_penalty) != 1:
            ids = np.flatnonzero(self._seen)
            found = scores[ids]
            scores[ids] = np.where(found > 0, found / penalty, found * penalty)
        if sampling.frequency_penalty or sampling.presence_penalty:
            ids = np.flatnonzero(self._said)
            scores[ids] -= (
                sampling.frequency_penalty * self._counts[ids] + sampling.presence_penalty
            )
        return scores

    def _thrown(self, ids: Ids, weights: Floats) -> int:
        # By blocks, for running sums of a whole vocabulary take longer than all the rest.
        starts = np.arange(0, len(weights), _BLOCK)
        blocks = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
        thrown = self._dice.random() * float(blocks[-1])
        block = _first_above(blocks, thrown)
        before = float(blocks[block - 1]) if block else 0.0
        start = block * _BLOCK
        within = np.cumsum(weights[start : start + _BLOCK], dtype=np.float64)
        return int(ids[start + _first_above(within, thrown - before)])


def _first_above(sums: NDArray[np.float64], value: float) -> int:
    """Return where running sums exceed a value, which is never where they stand still."""
    return int(np.searchsorted(sums, min(value, math.nextafter(sums[-1], 0.0)), side="right"))


def candidates(
    scores: Floats, *, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[Ids, Floats]:
    """Return the tokens that may come, and weights in the proportion of their probabilities.

    Of tokens that are as likely as each other, the lower id is the likelier. Where something is cut
    off, the likeliest comes first; else they are in the order of their ids.
    """
    size = len(scores)
    most = min(top_k, size) if top_k > 0 else size
    greatest = float(scores.max())
    if top_p >= 1 and min_p <= 0 and most == size:
        return np.arange(size), _weights(scores, greatest, temperature)
    if top_p >= 1:
        return _within(scores, most, greatest, temperature, min_p)
    if most == size > _FIRST_LOOK:
        ids, weights = _within(scores, _FIRST_LOOK, greatest, temperature, min_p)
        least = _least(greatest, temperature, min_p)
        whole = float(
            _weights(scores[scores >= least], greatest, temperature).sum(dtype=np.float64)
        )
        if float(weights.sum(dtype=np.float64)) >= top_p * whole:
            return _cut(ids, weights, top_p * whole)
    ids, weights = _within(scores, most, greatest, temperature, min_p)
    return _cut(ids, weights, top_p * float(weights.sum(dtype=np.float64)))


def _cut(ids: Ids, weights: Floats, enough: float) -> tuple[Ids, Floats]:
    """Return the first ones that have so much weight together, always one at the least."""
    kept = int(np.searchsorted(np.cumsum(weights, dtype=np.float64), enough, side="left")) + 1
    return ids[:kept], weights[:kept]


def _within(
    scores: Floats, most: int, greatest: float, temperature: float, min_p: float
) -> tuple[Ids, Floats]:
    """Return the `most` likeliest that min_p leaves, the likeliest first."""
    if min_p <= 0:
        ids = likeliest(scores, most)
    else:
        # First what it leaves, which is little: sorting takes longer than all else.
        ids = np.flatnonzero(scores >= _least(greatest, temperature, min_p))
        ids = ids[likeliest(scores[ids], most)]
    return ids, _weights(scores[ids], greatest, temperature)


def _least(greatest: float, temperature: float, min_p: float) -> float:
    """Return the score below which a token is not `min_p` times as likely as the likeliest."""
    return greatest + math.log(min_p) * temperature if min_p > 0 else -math.inf


def _weights(scores: Floats, greatest: float, temperature: float) -> Floats:
    weights: Floats = np.exp((scores - np.float32(greatest)) / np.float32(temperature))
    return weights


def likeliest(scores: Floats, most: int) -> Ids:
    """Return the ids of the highest scores, the highest first, the lower id among equals."""
    size = len(scores)
    if most < size:
        # In the order of the ids, so that of equals at the edge the lower ones stay.
        edge = np.partition(scores, size - most)[size - most]
        above = np.flatnonzero(scores > edge)
        ids = np.concatenate((above, np.flatnonzero(scores == edge)[: most - len(above)]))
    else:
        ids = np.arange(size)
    # Stable: equals stay in the order of their ids.
    found: Ids = ids[np.argsort(-scores[ids], kind="stable")]
    return found


def _told(token: int, logits: Floats, alternatives: int) -> Picked:
    greatest = float(logits.max())
    whole = greatest + math.log(float(np.exp(logits - greatest).sum(dtype=np.float64)))

    def logprob(of: int) -> float:
        return min(max(float(logits[of]) - whole, _LEAST_LOGPROB), 0.0)

    ids = likeliest(logits, min(alternatives, len(logits))) if alternatives else ()
    return Picked(token, logprob(token), tuple((int(each), logprob(int(each))) for each in ids))
