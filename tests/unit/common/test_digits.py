"""Numbers in text that clients or files contain."""

from __future__ import annotations

import pytest

from common.digits import parse_digits


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("7", 7), ("007", 7), ("999", 999)])
def test_parse_digits_returns_a_number_of_ascii_digits(text: str, number: int) -> None:
    assert parse_digits(text, max_digits=3) == number


@pytest.mark.parametrize(
    "text", ["", "1000", "-1", "+1", " 1", "1.5", "²", "٣", "1_0", "0x1", "one"]
)
def test_parse_digits_refuses_other_texts(text: str) -> None:
    assert parse_digits(text, max_digits=3) is None
