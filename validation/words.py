"""Text as words, for everything that counts or compares them."""

from __future__ import annotations

import re
from itertools import islice

# Scripts without spaces count each character as a word; elsewhere an apostrophe, hyphen, point or
# plus inside or after a word belongs to it ("don't", "full-time", "C++", "node.js").
_LONE = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
# What is taken is never given back: no part can end earlier and let the next one match.
_WORD = re.compile(_LONE + r"|\w++(?:['.+#-]++\w++)*+(?:\+\+|#)?")
# The same, for texts in which there is nothing else: it takes half as long.
_ASCII_WORD = re.compile(r"[a-z0-9_]++(?:['.+#-]++[a-z0-9_]++)*+(?:\+\+|#)?")


def words(text: str) -> list[str]:
    """Return the words of a text in lower case; linear in its length."""
    return _pattern(text).findall(_plain(text))


def has_words(text: str, least: int) -> bool:
    """Whether a text has as many words, without looking at those behind them."""
    return sum(1 for _ in islice(_pattern(text).finditer(_plain(text)), least)) >= least


def _pattern(text: str) -> re.Pattern[str]:
    return _ASCII_WORD if text.isascii() else _WORD


def _plain(text: str) -> str:
    return text.lower().replace("\u2019", "'")
