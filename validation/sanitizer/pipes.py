"""Pipes that belong to no table."""

from __future__ import annotations

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import Pattern
from validation.sanitizer.text_view import TextView


class Pipes:
    """The rule `stray_pipe`: the first group of its patterns is what goes.

    A pattern sees to what stands right before and behind; here the lines above and below are looked
    at, which have pipes if it is a table, a diagram or a command.
    """

    def __init__(self, rule: SanitizerRule | None) -> None:
        self._patterns = [Pattern(pattern) for pattern in rule.patterns] if rule else []

    def edits(self, page: TextView) -> list[Edit]:
        """Return what to take out."""
        if "|" not in page.text:
            return []
        found = []
        for pattern in self._patterns:
            for start, end in pattern.spans(page, 1):
                # Lines around it are looked at, which takes as long again as to find it.
                page.budget.spend()
                if not _has_piped_neighbour(page, start, end) and not page.code.around(start, end):
                    found.append(_create_edit(page, start, end))
        return found


def _has_piped_neighbour(page: TextView, start: int, end: int) -> bool:
    first = page.line_start(start)
    above = page.text[page.line_start(first - 1) : first] if first else ""
    last = page.line_end(end)
    below = page.text[last + 1 : page.line_end(last + 1)]
    return "|" in above or "|" in below


def _create_edit(page: TextView, start: int, end: int) -> Edit:
    text = page.text
    if start and text[start - 1] != "\n":
        return Edit(start, end, "", "stray_pipe")
    # Whole lines: they go with one of the two blank lines they stand between.
    if end >= page.end:
        return Edit(page.end_before(start), len(text), "", "stray_pipe")
    if not page.end_before(start):
        return Edit(0, page.skip_lines(end), "", "stray_pipe")
    is_after_blank = start > 1 and not text[page.line_start(start - 1) : start].strip()
    return Edit(start, page.skip_lines(end) if is_after_blank else end + 1, "", "stray_pipe")
