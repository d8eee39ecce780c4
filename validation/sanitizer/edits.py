"""Changes to a text: putting those of several rules and of several passes together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from validation.findings import Removal


class Edit(NamedTuple):
    """`text[start:end]`, never empty, becomes `replacement`: a removal on its way."""

    start: int
    end: int
    replacement: str
    rule: str


def select_edits(text: str, edits: Iterable[Edit]) -> list[Edit]:
    """Return the edits that change anything and do not overlap one further left.

    A later pass meets the others again.
    """
    chosen: list[Edit] = []
    reached = 0
    for edit in sorted(edits):
        changes = text[edit.start : edit.end] != edit.replacement and edit.start < edit.end
        if changes and edit.start >= reached:
            chosen.append(edit)
            reached = edit.end
    return chosen


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return the text that edits, in order, make of a text."""
    pieces: list[str] = []
    done = 0
    for edit in edits:
        pieces += (text[done : edit.start], edit.replacement)
        done = edit.end
    pieces.append(text[done:])
    return "".join(pieces)


def compose_edits(first: Sequence[Edit], second: Sequence[Edit]) -> list[Edit]:
    """Return the edits that do at once what `first` and then `second` do.

    An edit of the second that takes out more than what the first left together becomes several, so
    that every character keeps the rule that took it.
    """
    result: list[Edit] = []
    # Where a place between two passes is in the original: that place plus `shift`.
    shift = index = 0
    # What has been settled of an edit of the first that an edit of the second cut into.
    settled, cut = "", 0

    def place() -> int:
        return first[index].start - shift + cut

    def left() -> str:
        return first[index].replacement[cut:]

    def finish(replacement: str) -> None:
        nonlocal shift, index, settled, cut
        start, end, whole, rule = first[index]
        result.append(Edit(start, end, settled + replacement, rule))
        shift += end - start - len(whole)
        index, settled, cut = index + 1, "", 0

    for start, end, pending, rule in second:
        while index < len(first) and (place() + len(left()) <= start or place() >= end):
            if place() >= end:
                break
            finish(left())
        at = start
        while index < len(first) and place() < end:
            here, rest = place(), left()
            if at < here:
                result.append(Edit(at + shift, here + shift, pending, rule))
                pending = ""
            kept = rest[: max(0, start - here)]
            taken = min(end, here + len(rest))
            at = taken
            if here + len(rest) <= end:
                finish(kept + pending)
            else:
                settled += kept + pending
                cut += taken - here
            pending = ""
            if cut:
                break
        if at < end:
            result.append(Edit(at + shift, end + shift, pending, rule))
    while index < len(first):
        finish(left())
    return result


def to_removals(text: str, edits: Iterable[Edit]) -> tuple[Removal, ...]:
    """Return edits as they are reported: neighbours by one rule as one, no idle ones."""
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
