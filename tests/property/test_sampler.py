"""Sampling out of logits, beside the same done slowly, token by token, as the words say it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, currently_in_test_context, given
from hypothesis import strategies as st

from engine.backends.rkllm.logits import sampler as module
from engine.backends.rkllm.logits.sampler import Floats, Sampler, candidates, most_likely_ids
from engine.errors import BackendFailed, RequestRejected
from engine.request import SamplingParams

# Many alike, since it is among equals that an order goes wrong.
_SCORES = st.lists(
    st.one_of(st.integers(-8, 8).map(float), st.floats(-30, 30, width=32)), min_size=1, max_size=60
)
_CUTS = st.fixed_dictionaries(
    {
        "temperature": st.floats(0.05, 2),
        "top_k": st.one_of(st.just(-1), st.integers(1, 70)),
        "top_p": st.one_of(st.just(1.0), st.floats(0.01, 1)),
        "min_p": st.one_of(st.just(0.0), st.floats(0.001, 1)),
    }
)


def array(values: Sequence[float]) -> Floats:
    return np.array(values, np.float32)


def clear(is_clear: bool) -> None:
    """Leave out what hypothesis draws so near to an edge that rounding decides."""
    if currently_in_test_context():
        assume(is_clear)


def slow_candidates(
    scores: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """The tokens that may come with their probabilities."""
    greatest = max(scores)
    weights = [math.exp((score - greatest) / temperature) for score in scores]
    left = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    # What stands at the edge of a rounding may fall on either side.
    clear(not any(0 < abs(weights[token] - min_p) < 1e-5 for token in left))
    left = [token for token in left if weights[token] >= min_p]
    if top_k > 0:
        left = left[:top_k]
    whole = math.fsum(weights[token] for token in left)
    kept: list[int] = []
    together = 0.0
    for token in left:
        if kept and top_p < 1:
            clear(abs(together / whole - top_p) > 1e-5)
            if together / whole >= top_p:
                break
        kept.append(token)
        together += weights[token]
    return {token: weights[token] / together for token in kept}


def test_what_is_flat_is_not_cut_where_the_first_look_ends() -> None:
    size = 5 * module._PRESORT_TOKENS
    ids, _ = candidates(array([0.0] * size), temperature=1.0, top_k=-1, top_p=0.5, min_p=0.0)
    assert len(ids) == size // 2


@given(_SCORES, _CUTS, st.sampled_from([1, 5, 1024]))
def test_candidates_are_those_of_the_slow_way(
    scores: list[float], cuts: dict[str, Any], first_look: int
) -> None:
    # However many are looked at first.
    expected = slow_candidates(scores, **cuts)
    before, module._PRESORT_TOKENS = module._PRESORT_TOKENS, first_look
    try:
        ids, weights = candidates(array(scores), **cuts)
    finally:
        module._PRESORT_TOKENS = before
    whole = math.fsum(weights.tolist())
    found = dict(zip(ids.tolist(), (weights / whole).tolist(), strict=True))
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)


@given(_SCORES, st.integers(1, 70))
def test_likeliest_are_in_order_and_the_lower_id_comes_first(
    scores: list[float], most: int
) -> None:
    expected = sorted(range(len(scores)), key=lambda token: (-array(scores)[token], token))
    found = most_likely_ids(array(scores), min(most, len(scores)))
    assert found.tolist() == expected[: min(most, len(scores))]


def slow_scores(
    logits: list[float], sampling: SamplingParams, prompt: list[int], answer: list[int]
) -> list[float]:
    """The logits after bias and penalties."""
    said = Counter(answer)
    scores = []
    for token, logit in enumerate(logits):
        score = logit + sampling.logit_bias.get(token, 0.0)
        if token in said or token in prompt:
            penalty = sampling.repetition_penalty
            score = score / penalty if score > 0 else score * penalty
        if said[token]:
            score -= sampling.frequency_penalty * said[token] + sampling.presence_penalty
        scores.append(score)
    return scores


@given(st.data())
def test_bias_and_penalties_are_those_of_the_slow_way(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 20))
    token = st.integers(0, size - 1)
    sampling = SamplingParams(
        temperature=0,
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3, 0.7])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.5, -2.0])),
        presence_penalty=data.draw(st.sampled_from([0.0, 1.5, -0.5])),
        logit_bias=data.draw(st.dictionaries(token, st.sampled_from([-100.0, -1.0, 2.5]))),
    )
    prompt = data.draw(st.lists(token))
    chooses = Sampler(sampling, prompt, size)
    answer: list[int] = []
    for _ in range(6):
        logits = data.draw(st.lists(st.integers(-80, 80), min_size=size, max_size=size))
        row = [logit / 8 for logit in logits]
        expected = slow_scores(row, sampling, prompt, answer)
        assert chooses._adjust_logits(array(row)).tolist() == pytest.approx(expected, abs=1e-4)
        answer.append(chooses.sample(array(row)).token)
        assert expected[answer[-1]] == pytest.approx(max(expected), abs=1e-4)
        # What a grammar says for the model counts like what it says itself.
        forced = data.draw(st.lists(token, max_size=2))
        chooses.record_tokens(forced)
        answer += forced


@given(_SCORES, _CUTS, st.data())
def test_what_is_not_allowed_is_as_if_it_were_not_there(
    scores: list[float], cuts: dict[str, Any], data: st.DataObject
) -> None:
    size = len(scores)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    assume(allowed.any())
    sampling = SamplingParams(seed=3, logprobs=2, **cuts)
    row, there = array(scores), np.flatnonzero(allowed)
    held, alone = Sampler(sampling, [], size), Sampler(sampling, [], len(there))
    for _ in range(5):
        assert held.sample(row, allowed).token == there[alone.sample(row[there]).token]
    # Of all that the model may say, not of what it was let.
    assert held.sample(row, allowed).top == Sampler(sampling, [], size).sample(row).top


@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40), st.integers(0, 20))
def test_logprobs_are_the_models_own(logits: list[float], alternatives: int) -> None:
    sampling = SamplingParams(
        temperature=0.3, logprobs=alternatives, seed=1, logit_bias={0: 5.0}, presence_penalty=1.0
    )
    picked = Sampler(sampling, [], len(logits)).sample(array(logits))
    whole = math.log(math.fsum(map(math.exp, logits)))
    assert picked.logprob == pytest.approx(logits[picked.token] - whole, abs=1e-4)
    expected = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:alternatives]
    assert [token for token, _ in picked.top] == expected
    assert [logprob for _, logprob in picked.top] == pytest.approx(
        [logits[token] - whole for token in expected], abs=1e-4
    )
    assert picked.logprob <= 0


@pytest.mark.parametrize("cuts", [{}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}], ids=str)
def test_tokens_come_as_often_as_they_are_likely(cuts: dict[str, Any]) -> None:
    # More than a block of them, so that the dice fall into blocks first.
    size = 2000
    scores = [-60.0] * size
    for token, weight in ((3, 4), (700, 2), (1500, 3), (1999, 1)):
        scores[token] = math.log(weight)
    sampling = SamplingParams(seed=7, **cuts)
    chooses = Sampler(sampling, [], size)
    row, throws = array(scores), 4000
    found = Counter(chooses.sample(row).token for _ in range(throws))
    settings = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0} | cuts
    expected = slow_candidates(scores, **settings)
    assert {token: count / throws for token, count in found.items()} == pytest.approx(
        {token: share for token, share in expected.items() if share > 1e-9}, abs=0.03
    )


def test_same_seed_makes_the_same_choices() -> None:
    rows = np.random.default_rng(1).standard_normal((50, 300)).astype(np.float32)

    def choices(seed: int | None) -> list[int]:
        chooses = Sampler(SamplingParams(seed=seed), [], 300)
        return [chooses.sample(row).token for row in rows]

    assert choices(5) == choices(5)
    assert choices(-(2**63)) == choices(-(2**63))
    assert len({tuple(choices(seed)) for seed in (5, 6, -5, None, None)}) == 5


@pytest.mark.parametrize(
    "greedy", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_k": 1}, {"temperature": 1e-40}], ids=str
)
def test_greedy_is_the_likeliest_and_of_equals_the_first(greedy: dict[str, Any]) -> None:
    # R9
    chooses = Sampler(SamplingParams(**greedy), [], 5)
    assert {chooses.sample(array([1, 7, 7, 2, 7])).token for _ in range(20)} == {1}


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(RequestRejected, match="logit_bias: there is no token 9, the last one is 8"):
        Sampler(SamplingParams(logit_bias={3: 1.0, 9: 1.0}), [], 9)
    chooses = Sampler(SamplingParams(), [50], 3)
    for bad in ([math.nan, 1, 2], [1, math.inf, 2], [-math.inf] * 3):
        with pytest.raises(BackendFailed, match="logits that are no numbers"):
            chooses.sample(array(bad))
    assert chooses.sample(array([-math.inf, 1, -math.inf])).token == 1
