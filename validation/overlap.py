"""Common passages of two texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice


def find_shared_passages(source: Sequence[str], answer: Sequence[str], length: int) -> list[str]:
    """Return the passages of the answer, of `length` words or more, that are also in the source.

    Linear in both texts. Passages of the source that follow each other in the answer are returned
    as one, also if they do not follow each other in the source.
    """
    if not _may_share(source, answer, length):
        return []
    grams = set(_hash_grams(source, length))
    passages = []
    start = end = 0
    for at, gram in enumerate(_hash_grams(answer, length)):
        if gram not in grams:
            continue
        if at > end:
            passages.append(answer[start:end])
            start = at
        end = at + length
    passages.append(answer[start:end])
    return [" ".join(passage) for passage in passages if passage]


def _may_share(source: Sequence[str], answer: Sequence[str], length: int) -> bool:
    """Return whether both texts may have a common passage, from a sample of the longer one.

    Each passage contains an n-gram of half its length that starts at a multiple of the other half's
    length. So it is enough to search for the n-grams at these positions of the longer text.
    """
    short, long = (source, answer) if len(source) < len(answer) else (answer, source)
    if len(short) < length:
        return False
    half = (length + 1) // 2
    return not set(_hash_grams(short, half)).isdisjoint(_hash_grams(long, half, length - half + 1))


def _hash_grams(words: Sequence[str], length: int, step: int = 1) -> Iterable[int]:
    """Return the hashes of all n-grams of `length` words, because tuples need more memory."""
    return map(
        hash, zip(*(islice(words, first, None, step) for first in range(length)), strict=False)
    )
