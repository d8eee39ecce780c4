"""RE2 expressions of the sanitiser, which match any text in linear time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import re2

from validation.sanitizer.text_view import TextView

# The expression that matches nothing.
NOTHING = r"[^\x00-\x{10FFFF}]"


class Pattern:
    """A compiled RE2 expression.

    It matches bytes: with str, the re2 module counts characters for each match, which takes three
    times as long for many matches.
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
        """The number of groups of the expression."""
        return int(self._compiled.groups)

    def spans(self, view: TextView, group: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the spans of all matches, in characters, from left to right.

        Raises:
            BudgetExceeded: there are more matches than in any real answer.
        """
        raw = view.raw
        is_ascii = len(raw) == len(view.text)
        chars, bytes_ = 0, 0
        spend = view.budget.spend
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

    def first(self, view: TextView) -> tuple[int, int] | None:
        """Return the span of the first match, or None."""
        return next(self.spans(view), None)

    def matches(self, view: TextView) -> bool:
        """Return whether the expression matches anywhere."""
        return self._compiled.search(view.raw) is not None

    def match_length(self, text: str) -> int:
        """Return the length of the match at the start of a short text, or 0."""
        raw = text.encode("utf-8", "surrogatepass")
        match = self._compiled.match(raw)
        return len(raw[: match.end()].decode("utf-8", "surrogatepass")) if match else 0

    def find_first(self, text: str) -> int:
        """Return the start of the first match in a short text, or -1."""
        raw = text.encode("utf-8", "surrogatepass")
        match = self._compiled.search(raw)
        return len(raw[: match.start()].decode("utf-8", "surrogatepass")) if match else -1


def literal(word: str) -> str:
    """Return an expression that matches exactly this word."""
    return str(re2.escape(word))


def any_of(sources: Iterable[str]) -> str:
    """Return an expression that matches if any of the sources matches; none of none matches."""
    return "(?:" + ("|".join(f"(?:{source})" for source in sources) or NOTHING) + ")"
