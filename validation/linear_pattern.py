"""RE2 expressions that are looked for in answers: linear time, and a millisecond for a megabyte."""

from __future__ import annotations

from typing import Any

import re2

# Inside of brackets: what `\w` and `\s` mean to `re`, in all alphabets.
WORD = r"\pL\pN_"
OTHER_SPACE = (
    r"\t-\r\x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
)
SPACE = r"\x20" + OTHER_SPACE
# Where a word begins or ends; RE2 cannot look around, so the character beside it is taken as well.
WORD_START = rf"(?:\A|[^{WORD}])"
WORD_END = rf"(?:[^{WORD}]|\z)"

# RE2 keeps what it has found out about an expression. Where that is more than fits into its memory
# it forgets all of it and begins again, and takes a thousand times as long: little of this is used.
_MAX_MEMORY_BYTES = 64 << 20


class LinearPattern:
    """An expression that tells whether it is in a text."""

    __slots__ = ("_compiled",)

    def __init__(self, source: str) -> None:
        options: Any = re2.Options()
        options.max_mem = _MAX_MEMORY_BYTES
        self._compiled: Any = re2.compile(source.encode(), options)

    def search(self, text: str) -> bool:
        """Whether it is in a text."""
        # Half of a surrogate pair becomes a question mark: neither is a part of any word.
        return self._compiled.search(text.encode("utf-8", "replace")) is not None


def literal(text: str) -> str:
    """Return the expression that matches a text and nothing else."""
    return str(re2.escape(text))
