"""Text as pieces of words, each known by a number (WordPiece: Schuster and Nakajima, 2012)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_WORDS = re.compile(r"[^\W_]+|[^\w\s]|_")
_CONTINUATION = "##"
_MAX_WORD_CHARS = 40


class WordPiece:
    """Splits text into pieces of a vocabulary, the longest first; without case and accents.

    A word that cannot be made of them is one unknown piece, number 0. What has been split once is
    remembered, up to a bound; losing a race for that costs a second split and nothing else.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the numbers of a text's pieces; linear in its length."""
        ids: list[int] = []
        for word in _WORDS.findall(_normalize(text)):
            pieces = self._known.get(word)
            if pieces is None:
                pieces = self._split(word)
                if len(self._known) < 10_000:
                    self._known[word] = pieces
            ids += pieces
        return ids

    def _split(self, word: str) -> tuple[int, ...]:
        pieces: list[int] = []
        start, prefix = 0, ""
        if len(word) > _MAX_WORD_CHARS:
            return (0,)
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self._ids.get(prefix + word[start:end])
                if number is not None:
                    break
            else:
                return (0,)
            pieces.append(number)
            start, prefix = end, _CONTINUATION
        return tuple(pieces)


def _normalize(text: str) -> str:
    text = text.lower()
    if text.isascii():
        return text
    parts = unicodedata.normalize("NFD", text)
    return "".join(char for char in parts if unicodedata.category(char) != "Mn")
