"""Loops: a model that says the same thing over and over, at any period."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

_GRAM_WORDS = 3
_LONG_TOKEN_CHARS = 40


@dataclass(frozen=True, slots=True)
class Loop:
    """A stretch that repeats itself: `times` over with a period of `period` words."""

    period: int
    times: float
    start: int

    @property
    def length(self) -> int:
        """How many words the stretch has."""
        return round(self.period * self.times)


def find_longest_loop(tokens: Sequence[str]) -> Loop | None:
    """Return the loop that covers most of a text's words, None when nothing is said over and over.

    One pass: where a stretch has period p, each of its trigrams last occurred p words ago, so a run
    of equal distances between a trigram and its last occurrence is a loop of that period, however
    long the period is. A ratio of unique words would miss a loop of long period and blame a table.
    """
    # Hashes stand for trigrams: to make and to keep a tuple for each takes twice as long.
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
    # Figures may well repeat themselves: a board of zeros is data.
    if best is not None and not _has_letters(tokens[best.start : best.start + best.period]):
        best = None
    return best or _find_loop_in_word(tokens)


def _select_longer(best: Loop | None, period: int, run: int, end: int) -> Loop | None:
    """Return the longer one of a loop and of what a run of equal distances before `end` is."""
    length = run + period + _GRAM_WORDS - 1
    if not period or run < period or (best is not None and length <= best.length):
        return best
    return Loop(period, length / period, end + _GRAM_WORDS - 1 - length)


def _find_loop_in_word(tokens: Sequence[str]) -> Loop | None:
    """Return a loop within one endless word ("hahaha…"), its period counted in characters."""
    if max(map(len, tokens), default=0) < _LONG_TOKEN_CHARS:
        return None
    for position, token in enumerate(tokens):
        # A line of underscores is one to write on.
        if len(token) < _LONG_TOKEN_CHARS or not _has_letters(token):
            continue
        period = token.find(token[: _LONG_TOKEN_CHARS // 2], 1)
        if period > 0 and token[period:] == token[:-period]:
            return Loop(period, len(token) / period, position)
    return None


def _has_letters(parts: Iterable[str]) -> bool:
    return any(map(str.isalpha, chain.from_iterable(parts)))
