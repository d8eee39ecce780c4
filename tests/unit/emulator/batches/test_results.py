"""The usage of a batch is the sum over its answers."""

from __future__ import annotations

from typing import Any

import orjson
from openai.types import BatchUsage as OpenAIBatchUsage

from emulator.batches.results import UsageTotals
from tests.usage import usage


def build_line(usage_object: dict[str, Any]) -> bytes:
    return orjson.dumps({"response": {"body": {"usage": usage_object}}})


def test_usage_totals_add_up_all_answers() -> None:
    embeddings_usage = {"prompt_tokens": 100, "total_tokens": 100}
    lines = [
        build_line(usage(10, 3, cached=4)),
        build_line(usage(20, 5, cached=16)),
        build_line(embeddings_usage),
    ]
    totals = UsageTotals()
    assert list(totals.count(iter(lines))) == lines
    openai_usage = OpenAIBatchUsage.model_validate(totals.to_openai(), strict=True)
    assert (openai_usage.input_tokens, openai_usage.output_tokens, openai_usage.total_tokens) == (
        130,
        8,
        138,
    )
    assert openai_usage.input_tokens_details.cached_tokens == 20
