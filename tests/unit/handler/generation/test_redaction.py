"""Apply redactions to deltas: boundaries stay, and the joined text is the redacted text."""

from __future__ import annotations

import pytest

from handler.generation.redaction import redact_deltas
from validation import Removal
from validation.options.pii import PiiRedactor


def removal(start: int, end: int, replacement: str = "[x]") -> Removal:
    return Removal("pii_x", start, end, replacement)


@pytest.mark.parametrize(
    ("deltas", "removals", "kept"),
    [
        # Where nothing goes, nothing changes.
        ([], [], []),
        (["one ", "two"], [], ["one ", "two"]),
        # In one delta: all of it, its beginning, its middle, its end.
        (["one ", "two", " six"], [removal(4, 7)], ["one ", "[x]", " six"]),
        (["one two"], [removal(0, 3)], ["[x] two"]),
        (["one two six"], [removal(4, 7)], ["one [x] six"]),
        (["one two"], [removal(4, 7)], ["one [x]"]),
        # Over several: the replacement comes with the first, what lies within is dropped.
        (["one t", "wo six"], [removal(4, 7)], ["one [x]", " six"]),
        (["one t", "w", "o six"], [removal(4, 7)], ["one [x]", " six"]),
        (["one ", "t", "w", "o", " six"], [removal(4, 7)], ["one ", "[x]", " six"]),
        (["one t", "w", "o"], [removal(4, 7)], ["one [x]"]),
        (["on", "e"], [removal(0, 3)], ["[x]"]),
        # Two in one delta, two that touch, one that begins where another ends in mid-delta.
        (["one two six"], [removal(0, 3), removal(8, 11)], ["[x] two [x]"]),
        (["one", "two"], [removal(0, 3), removal(3, 6)], ["[x]", "[x]"]),
        (["onet", "wo"], [removal(0, 3), removal(3, 6)], ["[x][x]"]),
        (["on", "etw", "o"], [removal(0, 3), removal(3, 6)], ["[x]", "[x]"]),
        # The replacement may be empty.
        (["one ", "two", " six"], [removal(4, 7, "")], ["one ", " six"]),
        (["one"], [removal(0, 3, "")], []),
        # Empty deltas are removed.
        (["", "one", "", " two", ""], [], ["one", " two"]),
    ],
)
def test_what_is_kept(deltas: list[str], removals: list[Removal], kept: list[str]) -> None:
    # R46
    assert redact_deltas(deltas, removals) == kept


def test_characters_are_counted_and_not_bytes() -> None:
    text = "Grüße 😀 an bob@example.com, ja 😀"
    cleaned, removals = PiiRedactor().redact(text)
    assert "".join(redact_deltas(list(text), removals)) == cleaned == "Grüße 😀 an [email], ja 😀"


def test_deltas_argument_is_not_modified() -> None:
    deltas = ["one t", "wo"]
    redact_deltas(deltas, [removal(4, 7)])
    assert deltas == ["one t", "wo"]
