"""Loops: a model that says the same thing over and over, at any period."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from validation.words import words

_GRAM = 3
_LONG_TOKEN = 40


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


def longest_loop(text: str) -> Loop | None:
    """Return the loop that covers most words, None when nothing repeats itself in a row.

    One pass: where a stretch has period p, each of its trigrams last occurred p words ago, so a run
    of equal distances between a trigram and its last occurrence is a loop of that period, however
    long the period is. A ratio of unique words would miss a loop of long period and blame a table.
    """
    tokens = words(text)
    last: dict[tuple[str, ...], int] = {}
    best: Loop | None = None
    period = run = 0
    for position, gram in enumerate(zip(tokens, tokens[1:], tokens[2:], strict=False)):
        distance = position - last.get(gram, position)
        last[gram] = position
        if distance and distance == period:
            run += 1
        else:
            period, run = distance, 1
        if not period:
            continue
        length = run + period + _GRAM - 1
        if run >= period and (best is None or length > best.length):
            best = Loop(period, length / period, position + _GRAM - length)
    # Figures may well repeat themselves: a board of zeros is data.
    if best is not None and not _has_letters(tokens[best.start : best.start + best.period]):
        best = None
    return best or _inside_a_word(tokens)


def _inside_a_word(tokens: list[str]) -> Loop | None:
    """Return a loop within one endless word ("hahaha…"), its period counted in characters."""
    for position, token in enumerate(tokens):
        # A line of underscores is one to write on.
        if len(token) < _LONG_TOKEN or not _has_letters(token):
            continue
        period = token.find(token[: _LONG_TOKEN // 2], 1)
        if period > 0 and token[period:] == token[:-period]:
            return Loop(period, len(token) / period, position)
    return None


def _has_letters(parts: Iterable[str]) -> bool:
    return any(char.isalpha() for part in parts for char in part)
