"""Deltas without what was redacted from the text that they make."""

from __future__ import annotations

from collections.abc import Sequence

from validation import Removal


def redacted(deltas: Sequence[str], removals: Sequence[Removal]) -> list[str]:
    """Return deltas that join to the redacted text, cut where the given ones were.

    What stands for a removed span comes with the delta in which the span began; deltas that lie
    within one are dropped. `removals` are in order and do not overlap, their spans count characters
    of the deltas joined. Linear in both.
    """
    kept: list[str] = []
    pending = iter(removals)
    removal = next(pending, None)
    start = 0
    for delta in deltas:
        end = start + len(delta)
        pieces, at = [], start
        while removal is not None and removal.start < end:
            if removal.start >= start:
                pieces += [delta[at - start : removal.start - start], removal.replacement]
            at = min(removal.end, end)
            if removal.end > end:
                break
            removal = next(pending, None)
        pieces.append(delta[at - start :])
        if text := "".join(pieces):
            kept.append(text)
        start = end
    return kept
