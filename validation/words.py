"""Text as words, for everything that counts or compares them."""

from __future__ import annotations

import re

# Scripts without spaces count each character as a word; elsewhere an apostrophe, hyphen, point or
# plus inside or after a word belongs to it ("don't", "full-time", "C++", "node.js").
_LONE = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_WORD = re.compile(_LONE + r"|\w+(?:['\u2019.+#-]+\w+)*(?:\+\+|#)?")


def words(text: str) -> list[str]:
    """Return the words of a text in lower case; linear in its length."""
    return [word.replace("\u2019", "'") for word in _WORD.findall(text.lower())]
