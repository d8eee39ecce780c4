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
    result: list[Edit] = []
    # A position between the passes plus `shift` is the position in the original text.
    shift = index = 0
    # If an edit of `second` cuts into a replacement of `first`: the text already emitted for it,
    # and the number of its characters that are processed.
    settled, cut = "", 0

    def position() -> int:
        return first[index].start - shift + cut

    def remaining() -> str:
        return first[index].replacement[cut:]

    def finish(replacement: str) -> None:
        nonlocal shift, index, settled, cut
        start, end, replacement_text, rule = first[index]
        result.append(Edit(start, end, settled + replacement, rule))
        shift += end - start - len(replacement_text)
        index, settled, cut = index + 1, "", 0

    for start, end, pending, rule in second:
        while index < len(first) and (position() + len(remaining()) <= start or position() >= end):
            if position() >= end:
                break
            finish(remaining())
        at = start
        while index < len(first) and position() < end:
            position_now, remaining_text = position(), remaining()
            if at < position_now:
                result.append(Edit(at + shift, position_now + shift, pending, rule))
                pending = ""
            kept = remaining_text[: max(0, start - position_now)]
            taken = min(end, position_now + len(remaining_text))
            at = taken
            if position_now + len(remaining_text) <= end:
                finish(kept + pending)
            else:
                settled += kept + pending
                cut += taken - position_now
            pending = ""
            if cut:
                break
        if at < end:
            result.append(Edit(at + shift, end + shift, pending, rule))
    while index < len(first):
        finish(remaining())
    return result


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
