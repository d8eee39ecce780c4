"""Edits of a text, and the combination of edits of several rules and passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from validation.issues import Removal


class Edit(NamedTuple):
    """A change: `text[start:end]`, which is not empty, becomes `replacement`."""

    start: int
    end: int
    replacement: str
    rule: str


def select_edits(text: str, edits: Iterable[Edit]) -> list[Edit]:
    """Return the edits that change the text and do not overlap an earlier one, in order.

    A later pass finds the others again.
    """
    chosen: list[Edit] = []
    end_of_last = 0
    for edit in sorted(edits):
        changes = text[edit.start : edit.end] != edit.replacement and edit.start < edit.end
        if changes and edit.start >= end_of_last:
            chosen.append(edit)
            end_of_last = edit.end
    return chosen


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return the text after edits, which must be in order."""
    pieces: list[str] = []
    done = 0
    for edit in edits:
        pieces += (text[done : edit.start], edit.replacement)
        done = edit.end
    pieces.append(text[done:])
    return "".join(pieces)


def compose_edits(first: Sequence[Edit], second: Sequence[Edit]) -> list[Edit]:
    """Return edits that are equivalent to applying `first` and then `second`.

    An edit of `second` that spans edits of `first` is split, so that each removed character is
    attributed to the rule that removed it.
    """
    composition = _Composition(first)
    for edit in second:
        composition.add(edit)
    return composition.finish()


class _Composition:
    """Adds later edits to earlier ones, in the order of the text."""

    def __init__(self, first: Sequence[Edit]) -> None:
        self._first = first
        self._index = 0
        self._result: list[Edit] = []
        # A position between the passes plus this is the position in the original text.
        self._shift = 0
        # If a later edit cuts into the replacement of the current earlier one: the text that is
        # already settled for it, and the number of its characters that are processed.
        self._settled, self._cut = "", 0

    def add(self, edit: Edit) -> None:
        """Add an edit of the text between the passes."""
        at, end, pending, rule = edit
        while self._index < len(self._first) and self._end() <= at:
            self._pass_on(self._remaining())
        while self._has_edit_before(end):
            position, replacement_end = self._position(), self._end()
            if at < position:
                self._append(at, position, pending, rule)
                pending = ""
            kept = self._remaining()[: max(0, edit.start - position)]
            at = min(end, replacement_end)
            if replacement_end <= end:
                self._pass_on(kept + pending)
            else:
                self._settled += kept + pending
                self._cut += at - position
            pending = ""
            if self._cut:
                break
        if at < end:
            self._append(at, end, pending, rule)

    def finish(self) -> list[Edit]:
        """Return all edits."""
        while self._index < len(self._first):
            self._pass_on(self._remaining())
        return self._result

    def _has_edit_before(self, end: int) -> bool:
        return self._index < len(self._first) and self._position() < end

    def _position(self) -> int:
        """Where the rest of the current earlier edit's replacement begins, between the passes."""
        return self._first[self._index].start - self._shift + self._cut

    def _end(self) -> int:
        return self._position() + len(self._remaining())

    def _remaining(self) -> str:
        return self._first[self._index].replacement[self._cut :]

    def _append(self, start: int, end: int, replacement: str, rule: str) -> None:
        self._result.append(Edit(start + self._shift, end + self._shift, replacement, rule))

    def _pass_on(self, replacement: str) -> None:
        """Go to the next earlier edit; the current one is settled with this replacement."""
        start, end, replaced, rule = self._first[self._index]
        self._result.append(Edit(start, end, self._settled + replacement, rule))
        self._shift += end - start - len(replaced)
        self._index += 1
        self._settled, self._cut = "", 0


def to_removals(text: str, edits: Iterable[Edit]) -> tuple[Removal, ...]:
    """Return edits as removals: adjacent edits of one rule joined, edits without effect dropped."""
    joined: list[Edit] = []
    for edit in edits:
        if joined and joined[-1].end == edit.start and joined[-1].rule == edit.rule:
            last = joined.pop()
            edit = Edit(last.start, edit.end, last.replacement + edit.replacement, edit.rule)
        joined.append(edit)
    return tuple(
        Removal(edit.rule, edit.start, edit.end, edit.replacement)
        for edit in joined
        if text[edit.start : edit.end] != edit.replacement
    )
