"""What a batch tells of its answers together."""

from __future__ import annotations

from typing import Any

import orjson
from openai.types import BatchUsage as OpenAIBatchUsage

from emulator.batches.results import BatchUsage
from tests.usage import usage


def answered(told: dict[str, Any]) -> bytes:
    return orjson.dumps({"response": {"body": {"usage": told}}})


def test_tokens_of_all_answers_are_added_up() -> None:
    vectors = {"prompt_tokens": 100, "total_tokens": 100}
    lines = [answered(usage(10, 3, cached=4)), answered(usage(20, 5, cached=16)), answered(vectors)]
    counted = BatchUsage()
    assert list(counted.count(iter(lines))) == lines
    told = OpenAIBatchUsage.model_validate(counted.shown(), strict=True)
    assert (told.input_tokens, told.output_tokens, told.total_tokens) == (130, 8, 138)
    assert told.input_tokens_details.cached_tokens == 20
