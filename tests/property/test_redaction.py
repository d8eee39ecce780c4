"""Redacted deltas, compared with the redacted text that they must join to."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from handler.generation.redaction import redact_deltas
from validation import Removal
from validation.options.pii import PiiRedactor

TEXT = st.text("ab é😀", max_size=40)
PERSONAL = st.lists(
    st.sampled_from(
        ["4111 1111 1111 1111", "bob@example.com", "+49 30 123456", " and ", ", ", "é", "😀"]
    ),
    max_size=8,
).map("".join)


def cut(text: str, ends: list[int]) -> list[str]:
    """The text in pieces, none of them empty."""
    marks = sorted({end % (len(text) + 1) for end in ends} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(marks)]


CUTS = st.lists(st.integers(0, 200), max_size=30)


@st.composite
def texts_and_removals(draw: st.DrawFn) -> tuple[str, list[Removal]]:
    """A text and spans in it, in order, that may touch and do not overlap."""
    text = draw(TEXT)
    marks = sorted(draw(st.sets(st.integers(0, len(text)), max_size=8)))
    spans = itertools.pairwise(marks)
    return text, [
        Removal("x", start, end, draw(st.sampled_from(["", "[x]", "é"])))
        for start, end in spans
        if draw(st.booleans())
    ]


def without(text: str, removals: list[Removal]) -> str:
    for removal in reversed(removals):
        text = text[: removal.start] + removal.replacement + text[removal.end :]
    return text


@given(texts_and_removals(), CUTS)
@example(("abcdef", [Removal("x", 0, 3, ""), Removal("x", 3, 6, "[x]")]), [1, 2, 3, 4, 5])
def test_deltas_join_to_the_redacted_text(
    redaction: tuple[str, list[Removal]], ends: list[int]
) -> None:
    # R46
    text, removals = redaction
    assert "".join(redact_deltas(cut(text, ends), removals)) == without(text, removals)


@given(texts_and_removals(), CUTS)
def test_no_delta_is_empty(redaction: tuple[str, list[Removal]], ends: list[int]) -> None:
    text, removals = redaction
    assert all(redact_deltas(cut(text, ends), removals))


@given(texts_and_removals(), CUTS)
def test_deltas_outside_of_all_spans_are_untouched(
    redaction: tuple[str, list[Removal]], ends: list[int]
) -> None:
    text, removals = redaction
    deltas, start = cut(text, ends), 0
    untouched = []
    for delta in deltas:
        end = start + len(delta)
        if all(removal.end <= start or end <= removal.start for removal in removals):
            untouched.append(delta)
        start = end
    kept = iter(redact_deltas(deltas, removals))
    # All untouched deltas remain in order, with only other deltas between them.
    assert all(any(delta == each for each in kept) for delta in untouched)


@given(texts_and_removals(), CUTS)
def test_there_are_never_more_deltas_than_before(
    redaction: tuple[str, list[Removal]], ends: list[int]
) -> None:
    # R46: one delta is one token's text or what stands for it, so none is cut in two.
    text, removals = redaction
    deltas = cut(text, ends)
    assert len(redact_deltas(deltas, removals)) <= len(deltas)


@given(PERSONAL, CUTS)
def test_redacted_text_is_in_no_delta(text: str, ends: list[int]) -> None:
    cleaned, removals = PiiRedactor().redact(text)
    kept = redact_deltas(cut(text, ends), removals)
    assert "".join(kept) == cleaned
    assert PiiRedactor().redact("".join(kept)) == (cleaned, ())
