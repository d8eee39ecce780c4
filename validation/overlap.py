"""Passages that two texts have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice


def shared_passages(theirs: Sequence[str], ours: Sequence[str], length: int) -> list[str]:
    """Return the passages of `ours`, of `length` words or more, that are in `theirs` as well.

    Linear in both. What is joined is only told to be in `theirs` piece by piece: two pieces of it
    that follow each other in `ours` are one passage.
    """
    grams = set(_grams(theirs, length))
    passages = []
    start = end = 0
    for at, gram in enumerate(_grams(ours, length)):
        if gram not in grams:
            continue
        if at > end:
            passages.append(ours[start:end])
            start = at
        end = at + length
    passages.append(ours[start:end])
    return [" ".join(passage) for passage in passages if passage]


def _grams(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    return zip(*(islice(words, first, None) for first in range(length)), strict=False)
