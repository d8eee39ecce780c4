"""Runs of what stands once in prose: exclamation marks, commas, blank lines."""

from __future__ import annotations

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import Pattern
from validation.sanitizer.text_view import TextView


class Punctuation:
    """The rule `punctuation_run`: the first group of its patterns becomes one mark.

    A run of question and exclamation marks becomes one of each.
    """

    def __init__(self, rule: SanitizerRule | None) -> None:
        self._patterns = [Pattern(pattern) for pattern in rule.patterns] if rule else []

    def edits(self, page: TextView) -> list[Edit]:
        """Return what to shorten."""
        found = []
        for pattern in self._patterns:
            for start, end in pattern.spans(page, 1):
                if not page.code.around(start, end):
                    marks = "".join(dict.fromkeys(page.text[start:end]))
                    found.append(Edit(start, end, marks, "punctuation_run"))
        return found


class BlankLines:
    """The rule `blank_lines`: what its patterns match becomes one blank line, none at an end."""

    def __init__(self, rule: SanitizerRule | None) -> None:
        self._patterns = [Pattern(pattern) for pattern in rule.patterns] if rule else []

    def edits(self, page: TextView) -> list[Edit]:
        """Return what to shorten."""
        found = []
        for pattern in self._patterns:
            for start, end in pattern.spans(page):
                # Before an indented line they are the space between two pages of a manual.
                if page.code.around(start, end) or page.code.around(end, end + 1):
                    continue
                is_between = 0 < start and end < page.end
                found.append(Edit(start, end, "\n\n" if is_between else "", "blank_lines"))
        return found
