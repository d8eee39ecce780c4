"""Words and phrases as literals: whole words, any case, with a star for a word's ending."""

from __future__ import annotations

import re
from collections.abc import Sequence


class Phrases:
    """Finds any of several phrases in a text.

    A phrase is literal but for two things: a star at a word's end stands for the rest of the word
    ("negotiat*"), and a space for any white space. Compiled into one alternation of literals, which
    cannot backtrack into anything worse than linear.
    """

    __slots__ = ("_pattern", "phrases")

    def __init__(self, phrases: Sequence[str]) -> None:
        self.phrases = tuple(phrases)
        self._pattern = (
            re.compile("|".join(map(_literal, phrases)), re.IGNORECASE) if phrases else None
        )

    def __bool__(self) -> bool:
        return self._pattern is not None

    def search(self, text: str) -> bool:
        """Whether any of them is in the text."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def found(self, text: str) -> set[str]:
        """Return all that was found, as it is written in the text, in lower case."""
        if self._pattern is None:
            return set()
        return {match.group().lower() for match in self._pattern.finditer(text)}


def _literal(phrase: str) -> str:
    body = r"\s+".join(re.escape(part).replace(r"\*", r"\w*") for part in phrase.split())
    before = r"(?<!\w)" if phrase[0].isalnum() else ""
    after = r"(?!\w)" if phrase[-1].isalnum() or phrase[-1] == "*" else ""
    return before + body + after
