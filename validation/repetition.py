"""Detection of loops, in which a model repeats the same words, with any period."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

_GRAM_WORDS = 3
_LONG_TOKEN_CHARS = 40


@dataclass(frozen=True, slots=True)
class Loop:
    """A passage of `period` words that is repeated `times` times."""

    period: int
    times: float
    start: int

    @property
    def length(self) -> int:
        """The number of words of all repetitions."""
        return round(self.period * self.times)


def find_longest_loop(tokens: Sequence[str]) -> Loop | None:
    """Return the longest loop of a text, or None without a loop.

    In a loop of period p, each trigram last occurred p words ago. So a run of equal distances
    between trigrams and their last occurrences is a loop of that period, for any period, and one
    pass finds it. A ratio of unique words would miss loops of long periods and report tables.
    """
    # Hashes represent trigrams, because creating and storing tuples takes twice as long.
    last: dict[int, int] = {}
    last_of = last.get
    best: Loop | None = None
    period = run = 0
    position = -1
    for position, gram in enumerate(map(hash, zip(tokens, tokens[1:], tokens[2:], strict=False))):
        distance = position - last_of(gram, position)
        last[gram] = position
        if distance == period:
            run += 1
        else:
            best = _select_longer(best, period, run, position)
            period, run = distance, 1
    best = _select_longer(best, period, run, position + 1)
    # Repeated numbers are data, such as a table of zeros.
    if best is not None and not _has_letters(tokens[best.start : best.start + best.period]):
        best = None
    return best or _find_loop_in_word(tokens)


def _select_longer(best: Loop | None, period: int, run: int, end: int) -> Loop | None:
    """Return the longer of `best` and the loop of a run of equal distances that ends at `end`."""
    length = run + period + _GRAM_WORDS - 1
    if not period or run < period or (best is not None and length <= best.length):
        return best
    return Loop(period, length / period, end + _GRAM_WORDS - 1 - length)


def _find_loop_in_word(tokens: Sequence[str]) -> Loop | None:
    """Return a loop within one long word ("hahaha…"), with its period in characters."""
    if max(map(len, tokens), default=0) < _LONG_TOKEN_CHARS:
        return None
    for position, token in enumerate(tokens):
        # A line of underscores is a blank to fill in.
        if len(token) < _LONG_TOKEN_CHARS or not _has_letters(token):
            continue
        period = token.find(token[: _LONG_TOKEN_CHARS // 2], 1)
        if period > 0 and token[period:] == token[:-period]:
            return Loop(period, len(token) / period, position)
    return None


def _has_letters(parts: Iterable[str]) -> bool:
    return any(map(str.isalpha, chain.from_iterable(parts)))
