"""Apply the redactions of a text to the deltas that it consists of."""

from __future__ import annotations

from collections.abc import Sequence

from validation import Removal


def redact_deltas(deltas: Sequence[str], removals: Sequence[Removal]) -> list[str]:
    """Return deltas that join to the redacted text, with the same boundaries as `deltas`.

    The replacement of a removed span is part of the delta in which the span starts. Deltas within a
    span are dropped. `removals` are in order and do not overlap; their spans count characters of
    the joined deltas. The run time is linear in both.
    """
    redacted: list[str] = []
    pending = iter(removals)
    removal = next(pending, None)
    start = 0
    for delta in deltas:
        end = start + len(delta)
        pieces, position = [], start
        while removal is not None and removal.start < end:
            if removal.start >= start:
                pieces += [delta[position - start : removal.start - start], removal.replacement]
            position = min(removal.end, end)
            if removal.end > end:
                break
            removal = next(pending, None)
        pieces.append(delta[position - start :])
        if text := "".join(pieces):
            redacted.append(text)
        start = end
    return redacted
