"""A text to search for personal data, and the shared expressions for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import re2

# Replaces masked characters. Like the brackets of a replacement, it matches no personal data.
_MASK = "["
# Separators between the digits of a number, for use within brackets of an expression.
SEPARATORS = " \u00a0\u2009\u202f\u2010\u2011\u2013-"

Span = tuple[int, int]


class PiiText:
    """A text and its bytes; RE2 matches bytes, and counting characters for each match is slow."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _raw(self) -> bytes:
        # An unpaired surrogate becomes a question mark, so that positions stay the same.
        return self.text.encode("utf-8", "replace")

    def spans(self, pattern: Any) -> Iterator[Span]:
        """Yield the spans where an RE2 pattern matches, in characters."""
        if len(self._raw) == len(self.text):
            for match in pattern.finditer(self._raw):
                yield match.span()
            return
        chars = bytes_ = 0
        for match in pattern.finditer(self._raw):
            start, end = match.span()
            first = chars + len(self._raw[bytes_:start].decode())
            chars, bytes_ = first + len(self._raw[start:end].decode()), end
            yield first, chars

    def mask(self, spans: list[Span]) -> PiiText:
        """Return a text of the same length with the spans masked."""
        parts: list[str] = []
        at = 0
        for start, end in spans:
            parts += (self.text[at:start], _MASK * (end - start))
            at = end
        parts.append(self.text[at:])
        return PiiText("".join(parts))


def compile_pattern(pattern: str) -> Any:
    """Return a compiled RE2 expression, which matches in linear time."""
    return re2.compile(pattern.encode())


def digit_run(separators: str, max_separators: int, min_digits: int) -> str:
    """Return an expression of `re` for maximal runs of at least `min_digits` digits.

    Up to `max_separators` separators may be between two digits. It takes linear time, because only
    the first digit of a run starts a match, and possessive quantifiers prevent backtracking. The
    expression starts with that digit, which `re` searches quickly; the lookbehind for the text
    before it follows.
    """
    first = "".join(
        rf"(?<![0-9][{separators}]{{{size}}}[0-9])" for size in range(max_separators + 1)
    )
    return rf"[0-9]{first}(?:[{separators}]{{0,{max_separators}}}+[0-9]){{{min_digits - 1},}}+"


def is_word_character(char: str) -> bool:
    """Return whether a character next to a number or a name is part of the same word.

    Letters of scripts without case are not, because most of these scripts have no spaces.
    """
    return char == "_" or char.isdigit() or char.islower() or char.isupper()
