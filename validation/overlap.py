"""Passages that two texts have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice


def find_shared_passages(theirs: Sequence[str], ours: Sequence[str], length: int) -> list[str]:
    """Return the passages of `ours`, of `length` words or more, that are in `theirs` as well.

    Linear in both. What is joined is only told to be in `theirs` piece by piece: two pieces of it
    that follow each other in `ours` are one passage.
    """
    if not _may_share(theirs, ours, length):
        return []
    grams = set(_hash_grams(theirs, length))
    passages = []
    start = end = 0
    for at, gram in enumerate(_hash_grams(ours, length)):
        if gram not in grams:
            continue
        if at > end:
            passages.append(ours[start:end])
            start = at
        end = at + length
    passages.append(ours[start:end])
    return [" ".join(passage) for passage in passages if passage]


def _may_share(theirs: Sequence[str], ours: Sequence[str], length: int) -> bool:
    """Tell whether there may be a passage in both, without looking at most of the longer one.

    Wherever a passage stands, it has half of itself in it that begins at a multiple of the other
    half's length: such pieces of the longer text are looked for in the shorter one.
    """
    short, long = (theirs, ours) if len(theirs) < len(ours) else (ours, theirs)
    if len(short) < length:
        return False
    half = (length + 1) // 2
    return not set(_hash_grams(short, half)).isdisjoint(_hash_grams(long, half, length - half + 1))


def _hash_grams(words: Sequence[str], length: int, step: int = 1) -> Iterable[int]:
    """Return what stands for all runs of so many words; tuples would fill the memory."""
    return map(
        hash, zip(*(islice(words, first, None, step) for first in range(length)), strict=False)
    )
