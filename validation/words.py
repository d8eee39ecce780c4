"""Text as words, for everything that counts or compares them."""

from __future__ import annotations

import re
from itertools import islice

# Scripts without spaces count each character as a word; elsewhere an apostrophe, hyphen, point or
# plus inside or after a word belongs to it ("don't", "full-time", "C++", "node.js").
_UNSPACED_CHAR = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
# Linear: separators and word characters are disjoint, so that nothing can be matched in two ways.
# Without possessive groups: Python before 3.11.5 matches them wrongly (CPython issue 106052).
_WORD = re.compile(_UNSPACED_CHAR + r"|\w+(?:['.+#-]+\w+)*(?:\+\+|#)?")
# The same for ASCII texts: it takes half the time.
_ASCII_WORD = re.compile(r"[a-z0-9_]+(?:['.+#-]+[a-z0-9_]+)*(?:\+\+|#)?")


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case; linear in its length."""
    return _pattern(text).findall(_normalize(text))


def has_words(text: str, least: int) -> bool:
    """Whether a text has as many words, without looking at those behind them."""
    return sum(1 for _ in islice(_pattern(text).finditer(_normalize(text)), least)) >= least


def _pattern(text: str) -> re.Pattern[str]:
    return _ASCII_WORD if text.isascii() else _WORD


def _normalize(text: str) -> str:
    return text.lower().replace("\u2019", "'")
