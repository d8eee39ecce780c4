"""A text in a plain form for searches, and the positions of its characters in the original.

Digits of other scripts, full-width and invisible characters, and JSON's escapes do not change what
a reader sees or a program reads, but they hide a number or an address from a search.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

# Invisible characters: Default_Ignorable_Code_Point in Unicode's DerivedCoreProperties.
_INVISIBLE_SET = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
INVISIBLE = re.compile(f"[{_INVISIBLE_SET}]+")
# A pair of backslashes is one backslash in JSON, and does not begin an escape.
_ESCAPE = re.compile(r"\\\\|\\u([0-9A-Fa-f]{4})")
_ESCAPE_OR_INVISIBLE = re.compile(rf"{_ESCAPE.pattern}|[{_INVISIBLE_SET}]+")
# The offset of the full-width forms of ASCII (U+FF01 to U+FF5E).
_FULL_WIDTH_OFFSET = 0xFEE0
# Ordinal indicators are letters for Unicode, and part of words such as "1ª".
_ORDINAL_INDICATORS = "\u00aa\u00ba"

Span = tuple[int, int]


class FoldedText:
    """The folded text, and the spans in the original that its characters stand for.

    `starts` and `ends` have the span of each character; None if no position has changed.
    """

    def __init__(
        self, text: str, starts: Sequence[int] | None = None, ends: Sequence[int] | None = None
    ) -> None:
        self.text = text
        self._starts = starts
        self._ends = ends

    def original_span(self, start: int, end: int) -> Span:
        """Return the span in the original text of a span that is not empty."""
        if self._starts is None or self._ends is None:
            return start, end
        return self._starts[start], self._ends[end - 1]


def fold_text(text: str) -> FoldedText:
    """Return a text without invisible characters, with escapes decoded and ASCII forms in ASCII.

    Takes time linear in the length of the text.
    """
    has_escapes = "\\u" in text
    if text.isascii() and not has_escapes:
        return FoldedText(text)
    if not has_escapes and INVISIBLE.search(text) is None:
        return FoldedText(text.translate(_FOLDED_CHARS))
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for match in _ESCAPE_OR_INVISIBLE.finditer(text):
        if match.group() == "\\\\":
            continue
        first, last = match.span()
        parts.append(text[at:first].translate(_FOLDED_CHARS))
        starts += range(at, first)
        ends += range(at + 1, first + 1)
        at = last
        code = match.group(1)
        char = "" if code is None else INVISIBLE.sub("", chr(int(code, 16)))
        if char:
            parts.append(char.translate(_FOLDED_CHARS))
            starts.append(first)
            ends.append(last)
    parts.append(text[at:].translate(_FOLDED_CHARS))
    starts += range(at, len(text))
    ends += range(at + 1, len(text) + 1)
    return FoldedText("".join(parts), starts, ends)


class _FoldedChars(dict[int, str]):
    """A table for `str.translate` that is filled with each new character; one for one."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = _fold_char(chr(code))
        return folded


_FOLDED_CHARS = _FoldedChars()


def _fold_char(char: str) -> str:
    if char.isascii():
        return char
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if "\uff01" <= char <= "\uff5e":
        return chr(ord(char) - _FULL_WIDTH_OFFSET)
    if char == "\u3000":
        return " "
    # Mathematical letters, and small forms such as U+FE6B for @.
    if char in _ORDINAL_INDICATORS or not (char.isalpha() or "\ufe50" <= char <= "\ufe6f"):
        return char
    plain = unicodedata.normalize("NFKC", char)
    return plain if len(plain) == 1 and plain.isascii() else char
