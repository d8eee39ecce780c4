"""Redaction of any text: it never fails, its spans are correct, and it is idempotent."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from validation.options.pii import KINDS, PiiRedactor

PERSONAL = st.sampled_from(
    [
        "4111 1111 1111 1111",
        "378282246310005",
        "DE89 3704 0044 0532 0130 00",
        "GB29NWBK60161331926819",
        "bob@example.com",
        "jörg@müller.de",
        "+49 30 123456",
        "(415) 555-2671",
        "01 23 45 67 89",
        "tel: 5551234567",
        "gh" + "p_" + "a1B2" * 9,
        "sk" + "-" + "a1B2" * 9,
        "-----BEGIN " + "PRIVATE KEY-----\n" + "MIIE" * 16,
    ]
)
# Pieces that may complete the remainder of removed data to other personal data, or break it up.
PIECES = st.sampled_from(
    [
        *" \n.,:;-+/()[]@_=#$0149éА我😀\ud800",
        "tel:",
        "00",
        "://",
        "[card]",
        "[phone]",
        "GB29",
        "sk-",
    ]
)
ANY = st.text(st.characters(exclude_categories=()))
TEXTS = st.lists(PERSONAL | PIECES | ANY | st.from_regex(r"[0-9+() .-]{1,20}"), max_size=12).map(
    "".join
)
SETS = st.sets(st.sampled_from(KINDS))


@given(TEXTS, SETS)
@example("+49 30 123456bob@example.com4111 1111 1111 1111", set(KINDS))
def test_spans_of_the_original_give_the_result(text: str, kinds: set[str]) -> None:
    redacted, removals = PiiRedactor(kinds).redact(text)
    pieces, at = [], 0
    for removal in removals:
        assert at <= removal.start < removal.end <= len(text)
        kind = removal.rule.removeprefix("pii_")
        assert kind in kinds
        assert removal.replacement == f"[{kind}]"
        pieces += [text[at : removal.start], removal.replacement]
        at = removal.end
    assert "".join([*pieces, text[at:]]) == redacted


@given(TEXTS, SETS)
@example("4111 1111 1111 1111+49 30 123456bob@example.com+49 30 123456", set(KINDS))
def test_redaction_is_idempotent(text: str, kinds: set[str]) -> None:
    redactor = PiiRedactor(kinds)
    redacted, _ = redactor.redact(text)
    assert redactor.redact(redacted) == (redacted, ())


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Nd"], exclude_characters="@-_.")))
def test_text_without_candidates_is_returned_unchanged(text: str) -> None:
    assert PiiRedactor().redact(text) == (text, ())


@given(ANY)
def test_any_text_at_all(text: str) -> None:
    redacted, removals = PiiRedactor().redact(text)
    assert (redacted == text) == (not removals)
