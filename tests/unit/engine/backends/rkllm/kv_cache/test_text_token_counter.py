"""The tokens of texts that the runtime skipped, by the size of its cache or by an estimate."""

from __future__ import annotations

import pytest

from engine.backends.rkllm.kv_cache.text_token_counter import TextTokenCounter
from engine.backends.rkllm.runs.run import Run

TEXT = "aaaa bbbb cccc dddd"


def finished(computed: int, tokens: int = 3) -> Run:
    return Run(1, lambda *_: False, 50, tokens=tokens, finished=True, prefill_tokens=computed)


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_size_of_the_cache_shows_the_skipped_tokens(offset: int) -> None:
    counter = TextTokenCounter()
    size = 8 + 3 + offset
    assert counter.count_skipped(TEXT, finished(8), size, skips_nothing=True) == 0
    assert counter.count_skipped(TEXT, finished(0), size, skips_nothing=False) == 8
    assert counter.count_skipped("other", finished(2), 6 + 3 + offset, skips_nothing=False) == 4


@pytest.mark.parametrize("size", [None, 0, 500])
def test_tokens_are_estimated_without_a_usable_size(size: int | None) -> None:
    counter = TextTokenCounter()
    assert counter.count_skipped(TEXT, finished(8), size, skips_nothing=True) == 0
    assert counter.count_skipped(TEXT, finished(1), size, skips_nothing=False) == 7
    # Ten of nineteen characters are the same.
    other = TEXT[:10] + "x"
    assert counter.count_skipped(other, finished(2), size, skips_nothing=False) == 4


def test_text_that_skips_nothing_has_no_skipped_tokens() -> None:
    counter = TextTokenCounter()
    for _ in range(2):
        assert counter.count_skipped(TEXT, finished(8), 11, skips_nothing=True) == 0
