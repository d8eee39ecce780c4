"""Counts the tokens of texts that only the runtime tokenises, where it skips some of them."""

from __future__ import annotations

import itertools

from engine.backends.rkllm.runs.run import Run

# The last token called back may be missing from the cache, or one more may be in it.
_MAX_OFFSET = 1


class TextTokenCounter:
    """Finds out how many tokens of a text the runtime skipped: it counts only the others.

    The size of the key-value cache after a run is the number of tokens of prompt and answer, if it
    was that after a run whose prompt was computed whole. Otherwise the number is estimated from the
    characters that the text has in common with the last one. Owned by the thread of the runs.
    """

    def __init__(self) -> None:
        # The last text and its tokens; None if they are not known.
        self._last: tuple[str, int] | None = None
        # The size that the cache reports, less prompt and answer: a token or two. None if it is
        # not known, or so large that the size must mean something else.
        self._size_offset: int | None = None

    def count_skipped(
        self, text: str, run: Run, cache_size: int | None, *, skips_nothing: bool
    ) -> int:
        """Return how many tokens of the text a finished run skipped."""
        computed, skipped = run.prefill_tokens, 0
        if skips_nothing or self._last is None:
            offset = (cache_size or 0) - computed - run.tokens
            self._size_offset = offset if abs(offset) <= _MAX_OFFSET else None
        elif self._size_offset is not None and cache_size is not None:
            skipped = max(cache_size - self._size_offset - run.tokens - computed, 0)
        else:
            skipped = _estimate_skipped(text, computed, *self._last)
        self._last = (text, computed + skipped)
        return skipped


def _estimate_skipped(text: str, computed: int, last_text: str, last_tokens: int) -> int:
    if text == last_text:
        return max(last_tokens - computed, 0)
    pairs = zip(text, last_text, strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return last_tokens * common // max(len(last_text), 1)
