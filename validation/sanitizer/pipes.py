"""The rule `stray_pipe`: removes pipes that are not part of a table."""

from __future__ import annotations

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import Pattern
from validation.sanitizer.text_view import TextView


class Pipes:
    """The rule `stray_pipe`: removes the first group of its patterns.

    The patterns check the characters around a pipe. This class checks the lines above and below,
    which have pipes in a table, a diagram or a command.
    """

    def __init__(self, rule: SanitizerRule | None) -> None:
        self._patterns = [Pattern(pattern) for pattern in rule.patterns] if rule else []

    def find_edits(self, view: TextView) -> list[Edit]:
        """Return the edits of one pass."""
        if "|" not in view.text:
            return []
        edits = []
        for pattern in self._patterns:
            for start, end in pattern.spans(view, 1):
                # Reading the lines around a match takes as long as finding it.
                view.budget.spend()
                if not _has_piped_neighbour(view, start, end) and not view.code.find_span(
                    start, end
                ):
                    edits.append(_create_edit(view, start, end))
        return edits


def _has_piped_neighbour(view: TextView, start: int, end: int) -> bool:
    first = view.line_start(start)
    above = view.text[view.line_start(first - 1) : first] if first else ""
    last = view.line_end(end)
    below = view.text[last + 1 : view.line_end(last + 1)]
    return "|" in above or "|" in below


def _create_edit(view: TextView, start: int, end: int) -> Edit:
    text = view.text
    if start and text[start - 1] != "\n":
        return Edit(start, end, "", "stray_pipe")
    # Whole lines are removed with one of the two blank lines around them.
    if end >= view.end:
        return Edit(view.end_before(start), len(text), "", "stray_pipe")
    if not view.end_before(start):
        return Edit(0, view.skip_lines(end), "", "stray_pipe")
    is_after_blank = start > 1 and not text[view.line_start(start - 1) : start].strip()
    return Edit(start, view.skip_lines(end) if is_after_blank else end + 1, "", "stray_pipe")
