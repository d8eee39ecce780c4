"""Sampling from logits, compared with a slow implementation that handles token by token."""

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

# Many equal scores, because an error in the order shows among equal ones.
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
    """Discard examples so near to a threshold that rounding decides."""
    if currently_in_test_context():
        assume(is_clear)


def slow_candidates(
    scores: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """Return the candidate tokens with their probabilities."""
    greatest = max(scores)
    weights = [math.exp((score - greatest) / temperature) for score in scores]
    left = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    # Rounding decides about a weight that is this near to the threshold.
    clear(not any(0 < abs(weights[token] - min_p) < 1e-5 for token in left))
    left = [token for token in left if weights[token] >= min_p]
    if top_k > 0:
        left = left[:top_k]
    total_weight = math.fsum(weights[token] for token in left)
    kept: list[int] = []
    kept_weight = 0.0
    for token in left:
        if kept and top_p < 1:
            clear(abs(kept_weight / total_weight - top_p) > 1e-5)
            if kept_weight / total_weight >= top_p:
                break
        kept.append(token)
        kept_weight += weights[token]
    return {token: weights[token] / kept_weight for token in kept}


def test_flat_distribution_is_not_cut_at_the_number_of_presorted_tokens() -> None:
    size = 5 * module._PRESORT_TOKENS
    ids, _ = candidates(array([0.0] * size), temperature=1.0, top_k=-1, top_p=0.5, min_p=0.0)
    assert len(ids) == size // 2


@given(_SCORES, _CUTS, st.sampled_from([1, 5, 1024]))
def test_candidates_agree_with_the_slow_implementation(
    scores: list[float], cuts: dict[str, Any], first_look: int
) -> None:
    # The result does not depend on the number of presorted tokens.
    expected = slow_candidates(scores, **cuts)
    before, module._PRESORT_TOKENS = module._PRESORT_TOKENS, first_look
    try:
        ids, weights = candidates(array(scores), **cuts)
    finally:
        module._PRESORT_TOKENS = before
    total_weight = math.fsum(weights.tolist())
    probabilities = dict(zip(ids.tolist(), (weights / total_weight).tolist(), strict=True))
    assert probabilities == pytest.approx(expected, rel=1e-3, abs=1e-6)


@given(_SCORES, st.integers(1, 70))
def test_likeliest_are_in_order_and_the_lower_id_comes_first(
    scores: list[float], count: int
) -> None:
    expected = sorted(range(len(scores)), key=lambda token: (-array(scores)[token], token))
    likeliest = most_likely_ids(array(scores), min(count, len(scores)))
    assert likeliest.tolist() == expected[: min(count, len(scores))]


def slow_scores(
    logits: list[float], sampling: SamplingParams, prompt: list[int], answer: list[int]
) -> list[float]:
    """Return the logits after bias and penalties."""
    answer_counts = Counter(answer)
    scores = []
    for token, logit in enumerate(logits):
        score = logit + sampling.logit_bias.get(token, 0.0)
        if token in answer_counts or token in prompt:
            penalty = sampling.repetition_penalty
            score = score / penalty if score > 0 else score * penalty
        if answer_counts[token]:
            score -= sampling.frequency_penalty * answer_counts[token] + sampling.presence_penalty
        scores.append(score)
    return scores


@given(st.data())
def test_bias_and_penalties_agree_with_the_slow_implementation(data: st.DataObject) -> None:
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
        # Tokens that a grammar forces count like sampled ones.
        forced = data.draw(st.lists(token, max_size=2))
        chooses.record_tokens(forced)
        answer += forced


@given(_SCORES, _CUTS, st.data())
def test_sampler_ignores_tokens_that_are_not_allowed(
    scores: list[float], cuts: dict[str, Any], data: st.DataObject
) -> None:
    size = len(scores)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    assume(allowed.any())
    sampling = SamplingParams(seed=3, logprobs=2, **cuts)
    row, allowed_ids = array(scores), np.flatnonzero(allowed)
    masked, reduced = Sampler(sampling, [], size), Sampler(sampling, [], len(allowed_ids))
    for _ in range(5):
        assert (
            masked.sample(row, allowed).token == allowed_ids[reduced.sample(row[allowed_ids]).token]
        )
    # The top log-probabilities are of all tokens, not only of the allowed ones.
    assert masked.sample(row, allowed).top == Sampler(sampling, [], size).sample(row).top


@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40), st.integers(0, 20))
def test_logprobs_are_the_models_own(logits: list[float], alternatives: int) -> None:
    sampling = SamplingParams(
        temperature=0.3, logprobs=alternatives, seed=1, logit_bias={0: 5.0}, presence_penalty=1.0
    )
    picked = Sampler(sampling, [], len(logits)).sample(array(logits))
    log_total = math.log(math.fsum(map(math.exp, logits)))
    assert picked.logprob == pytest.approx(logits[picked.token] - log_total, abs=1e-4)
    expected = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:alternatives]
    assert [token for token, _ in picked.top] == expected
    assert [logprob for _, logprob in picked.top] == pytest.approx(
        [logits[token] - log_total for token in expected], abs=1e-4
    )
    assert picked.logprob <= 0


@pytest.mark.parametrize("cuts", [{}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}], ids=str)
def test_tokens_come_as_often_as_they_are_likely(cuts: dict[str, Any]) -> None:
    # More tokens than one block, so that the sampler chooses a block first.
    size = 2000
    scores = [-60.0] * size
    for token, weight in ((3, 4), (700, 2), (1500, 3), (1999, 1)):
        scores[token] = math.log(weight)
    sampling = SamplingParams(seed=7, **cuts)
    chooses = Sampler(sampling, [], size)
    row, throws = array(scores), 4000
    counts = Counter(chooses.sample(row).token for _ in range(throws))
    settings = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0} | cuts
    expected = slow_candidates(scores, **settings)
    assert {token: count / throws for token, count in counts.items()} == pytest.approx(
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


def test_unknown_tokens_and_invalid_logits_are_refused() -> None:
    with pytest.raises(RequestRejected, match="logit_bias: there is no token 9, the last one is 8"):
        Sampler(SamplingParams(logit_bias={3: 1.0, 9: 1.0}), [], 9)
    chooses = Sampler(SamplingParams(), [50], 3)
    for bad in ([math.nan, 1, 2], [1, math.inf, 2], [-math.inf] * 3):
        with pytest.raises(BackendFailed, match="logits that are no numbers"):
            chooses.sample(array(bad))
    assert chooses.sample(array([-math.inf, 1, -math.inf])).token == 1
