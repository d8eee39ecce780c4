"""WordPiece tokenizer (Schuster and Nakajima, 2012)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_WORDS = re.compile(r"[^\W_]+|[^\w\s]|_")
_CONTINUATION = "##"
_MAX_WORD_CHARS = 40


class WordPiece:
    """Splits text into pieces of a vocabulary, longest match first, without case and accents.

    A word that has no such split is one unknown piece with the id 0. Splits are cached for 10,000
    words. The cache needs no lock: a race only causes a second split.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {piece: piece_id for piece_id, piece in enumerate(vocabulary)}
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of the pieces of a text, in linear time."""
        ids: list[int] = []
        for word in _WORDS.findall(_normalize(text)):
            pieces = self._cache.get(word)
            if pieces is None:
                pieces = self._split(word)
                if len(self._cache) < 10_000:
                    self._cache[word] = pieces
            ids += pieces
        return ids

    def _split(self, word: str) -> tuple[int, ...]:
        pieces: list[int] = []
        start, prefix = 0, ""
        if len(word) > _MAX_WORD_CHARS:
            return (0,)
        while start < len(word):
            for end in range(len(word), start, -1):
                piece_id = self._ids.get(prefix + word[start:end])
                if piece_id is not None:
                    break
            else:
                return (0,)
            pieces.append(piece_id)
            start, prefix = end, _CONTINUATION
        return tuple(pieces)


def _normalize(text: str) -> str:
    text = text.lower()
    if text.isascii():
        return text
    parts = unicodedata.normalize("NFD", text)
    return "".join(char for char in parts if unicodedata.category(char) != "Mn")
