"""The parameters of requests to llama.cpp."""

from __future__ import annotations

from typing import Any

import pytest

from engine.backends.llamacpp.completion_request import build_completion_request
from engine.request import SamplingParams


def build(sampling: SamplingParams) -> dict[str, Any]:
    return build_completion_request(
        "Hello",
        sampling,
        prompt_tokens=(1,),
        preserved_tokens=(),
        context_length=100,
        cache_prompt=True,
        end_tokens=(2, 7),
    )


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(ignore_eos=True, grammar='start: "a" | "b"'),
        SamplingParams(ignore_eos=True, json_schema={"type": "object"}),
    ],
)
def test_end_tokens_are_only_unlikely_in_a_grammar(sampling: SamplingParams) -> None:
    # Without them, an answer would leave a grammar that allows nothing but its end.
    body = build(sampling)
    assert body["ignore_eos"] is False
    assert body["logit_bias"] == [[2, -1000.0], [7, -1000.0]]


def test_end_tokens_are_ignored_without_a_grammar() -> None:
    body = build(SamplingParams(ignore_eos=True))
    assert body["ignore_eos"] is True
    assert body["logit_bias"] == []
