"""RE2 expressions, which take linear time on any text: all that this package asks of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import re2

from validation.sanitizer.text_view import TextView

# The expression that matches nothing.
NOTHING = r"[^\x00-\x{10FFFF}]"


class Pattern:
    """A compiled RE2 expression.

    It is matched against bytes: the module's own way with str counts characters for every single
    match, and takes three times as long where there are many.
    """

    def __init__(self, source: str) -> None:
        options: Any = re2.Options()
        options.log_errors = False
        try:
            self._compiled: Any = re2.compile(source.encode(), options)
        except re2.error as error:
            reason = error.args[0] if error.args else "not an RE2 expression"
            if isinstance(reason, bytes):
                reason = reason.decode(errors="replace")
            raise ValueError(f"{source!r}: {reason}") from None

    @property
    def groups(self) -> int:
        """How many groups the expression has."""
        return int(self._compiled.groups)

    def spans(self, page: TextView, group: int = 0) -> Iterator[tuple[int, int]]:
        """Yield where a page matches, in characters, from left to right.

        Raises:
            TooMuchError: in more places than any answer.
        """
        raw = page.raw
        is_ascii = len(raw) == len(page.text)
        chars, bytes_ = 0, 0
        spend = page.budget.spend
        for match in self._compiled.finditer(raw):
            spend()
            start, end = match.span(group)
            if is_ascii:
                yield start, end
                continue
            chars += len(raw[bytes_:start].decode("utf-8", "surrogatepass"))
            first = chars
            chars += len(raw[start:end].decode("utf-8", "surrogatepass"))
            bytes_ = end
            yield first, chars

    def first(self, page: TextView) -> tuple[int, int] | None:
        """Return where a page matches first."""
        return next(self.spans(page), None)

    def found(self, page: TextView) -> bool:
        """Tell whether a page matches anywhere."""
        return self._compiled.search(page.raw) is not None

    def head(self, text: str) -> int:
        """Return the length of the match at the beginning of a short text, 0 without one."""
        raw = text.encode("utf-8", "surrogatepass")
        match = self._compiled.match(raw)
        return len(raw[: match.end()].decode("utf-8", "surrogatepass")) if match else 0

    def tail(self, text: str) -> int:
        """Return where in a short text its first match begins, -1 without one."""
        raw = text.encode("utf-8", "surrogatepass")
        match = self._compiled.search(raw)
        return len(raw[: match.start()].decode("utf-8", "surrogatepass")) if match else -1


def literal(word: str) -> str:
    """Return the expression that matches a word and nothing else."""
    return str(re2.escape(word))


def any_of(sources: Iterable[str]) -> str:
    """Return the expression that matches what any of several does: nothing if there are none."""
    return "(?:" + ("|".join(f"(?:{source})" for source in sources) or NOTHING) + ")"
