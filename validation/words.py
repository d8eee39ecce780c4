"""Splitting of texts into words."""

from __future__ import annotations

import re
from itertools import islice

# In scripts without spaces each character is a word. In others, an apostrophe, hyphen, point or
# plus within or after a word is part of it ("don't", "full-time", "C++", "node.js").
_UNSPACED_CHAR = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
# Matching is linear, because separators and word characters are disjoint, so there is one way to
# match. Possessive groups are avoided: Python before 3.11.5 matches them wrongly (CPython issue
# 106052).
_WORD = re.compile(_UNSPACED_CHAR + r"|\w+(?:['.+#-]+\w+)*(?:\+\+|#)?")
# The same for ASCII texts, in half the time.
_ASCII_WORD = re.compile(r"[a-z0-9_]+(?:['.+#-]+[a-z0-9_]+)*(?:\+\+|#)?")


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case; linear in its length."""
    return _pattern(text).findall(_normalize(text))


def has_words(text: str, count: int) -> bool:
    """Return whether a text has at least `count` words, without reading further words."""
    return sum(1 for _ in islice(_pattern(text).finditer(_normalize(text)), count)) >= count


def _pattern(text: str) -> re.Pattern[str]:
    return _ASCII_WORD if text.isascii() else _WORD


def _normalize(text: str) -> str:
    return text.lower().replace("\u2019", "'")
