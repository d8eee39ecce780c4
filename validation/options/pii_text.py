"""A text as it is looked through for personal data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import re2

# Stands for what was taken out: like the brackets of a replacement, no part of any kind.
_MASK = "["
# What may stand between the digits of a number, for the inside of brackets.
SEPARATORS = " \u00a0\u2009\u202f\u2010\u2011\u2013-"

Span = tuple[int, int]


class PiiText:
    """A text and its bytes; RE2 matches bytes, and counting characters for each match is slow."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _raw(self) -> bytes:
        # Half of a surrogate pair becomes a question mark: one character for one.
        return self.text.encode("utf-8", "replace")

    def spans(self, pattern: Any) -> Iterator[Span]:
        """Yield where an RE2 pattern matches, in characters."""
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

    def without(self, spans: list[Span]) -> PiiText:
        """Return the page with something taken out, and all else where it was."""
        pieces: list[str] = []
        at = 0
        for start, end in spans:
            pieces += (self.text[at:start], _MASK * (end - start))
            at = end
        pieces.append(self.text[at:])
        return PiiText("".join(pieces))


def compile_pattern(pattern: str) -> Any:
    """Return an RE2 expression for pages, which takes linear time on any of them."""
    return re2.compile(pattern.encode())


def digit_run(separators: str, most: int, least: int) -> str:
    """Return an expression of `re` for runs of at least so many digits, as long as they are.

    Between two of them there may be up to `most` of the separators. It takes linear time: only the
    first digit of a run begins a match, and nothing that was taken is given back. It begins with
    that digit, which `re` jumps to; what stands before it is looked at behind it.
    """
    first = "".join(rf"(?<![0-9][{separators}]{{{size}}}[0-9])" for size in range(most + 1))
    return rf"[0-9]{first}(?:[{separators}]{{0,{most}}}+[0-9]){{{least - 1},}}+"


def is_word_character(char: str) -> bool:
    """Whether a character beside a number or a name makes one word with it.

    Scripts without capitals, which mostly do without spaces as well, do not.
    """
    return char == "_" or char.isdigit() or char.islower() or char.isupper()
