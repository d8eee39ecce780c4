"""The rules `punctuation_run` and `blank_lines`: shorten repeated marks and blank lines."""

from __future__ import annotations

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import Pattern
from validation.sanitizer.text_view import TextView


class Punctuation:
    """The rule `punctuation_run`: reduces the first group of its patterns to one of each mark."""

    def __init__(self, rule: SanitizerRule | None) -> None:
        self._patterns = [Pattern(pattern) for pattern in rule.patterns] if rule else []

    def find_edits(self, view: TextView) -> list[Edit]:
        """Return what to shorten."""
        edits = []
        for pattern in self._patterns:
            for start, end in pattern.spans(view, 1):
                if not view.code.find_span(start, end):
                    marks = "".join(dict.fromkeys(view.text[start:end]))
                    edits.append(Edit(start, end, marks, "punctuation_run"))
        return edits


class BlankLines:
    """The rule `blank_lines`: matches become one blank line, or nothing at either end of a text."""

    def __init__(self, rule: SanitizerRule | None) -> None:
        self._patterns = [Pattern(pattern) for pattern in rule.patterns] if rule else []

    def find_edits(self, view: TextView) -> list[Edit]:
        """Return what to shorten."""
        edits = []
        for pattern in self._patterns:
            for start, end in pattern.spans(view):
                # Blank lines before an indented line are part of its layout.
                if view.code.find_span(start, end) or view.code.find_span(end, end + 1):
                    continue
                is_between = 0 < start and end < view.end
                edits.append(Edit(start, end, "\n\n" if is_between else "", "blank_lines"))
        return edits
