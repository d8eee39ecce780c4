"""Find marks, fixed strings such as `<think>`, in a text that may end within one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType


class Marks:
    """Some marks, prepared for searching. Immutable.

    A mark in `followers` counts only before one of these characters, white space, or the end.
    """

    def __init__(
        self, marks: tuple[str, ...], followers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        # The longest first, because one mark may begin with another.
        by_length = sorted(marks, key=len, reverse=True)
        patterns = [
            re.escape(mark)
            + (rf"(?=[\s{re.escape(followers[mark])}]|\Z)" if mark in followers else "")
            for mark in by_length
        ]
        self._pattern = re.compile("|".join(patterns))
        self._longest = len(by_length[0])
        self._beginnings = frozenset(
            mark[:length] for mark in marks for length in range(1, len(mark))
        )
        self._first_characters = frozenset(mark[0] for mark in marks)

    def search(self, text: str, start: int) -> re.Match[str] | None:
        """Return the first mark in `text[start:]`, the longest of several."""
        return self._pattern.search(text, start)

    def match(self, text: str, start: int) -> str:
        """Return the longest mark that `text[start:]` begins with; "" if it begins with no mark."""
        match = self._pattern.match(text, start)
        return "" if match is None else match[0]

    def may_continue(self, text: str, start: int) -> bool:
        """Return whether `text[start:]` may be the beginning of a mark, or of a longer one."""
        rest = text[start : start + self._longest]
        return not rest or rest in self._beginnings

    def find_held_start(self, text: str, start: int) -> int:
        """Return where an incomplete mark at the end of `text[start:]` may begin; else its end."""
        for position in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[position] in self._first_characters and text[position:] in self._beginnings:
                return position
        return len(text)


@lru_cache(maxsize=256)
def prepare(marks: tuple[str, ...]) -> Marks:
    """Return marks prepared for searching; the same ones are prepared once."""
    return Marks(marks)
