"""The WordPiece tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation.wordpiece import WordPiece

PIECES = ["[UNK]", "pay", "##roll", "##s", "roll", "?", "a", "##a", "é", "e", "職"]
WORDPIECE = WordPiece(PIECES)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("pay", ["pay"]),
        ("Payrolls?", ["pay", "##roll", "##s", "?"]),
        ("pay roll", ["pay", "roll"]),
        ("payx pay", ["[UNK]", "pay"]),
        ("PAY\u00c9 \u00e9", ["[UNK]", "e"]),
        ("職", ["職"]),
        ("a_a", ["a", "[UNK]", "a"]),
        ("", []),
        (" \n", []),
        ("a" * 40, ["a", *["##a"] * 39]),
        ("a" * 41, ["[UNK]"]),
    ],
)
def test_longest_piece_matches_first(text: str, pieces: list[str]) -> None:
    assert [PIECES[number] for number in WORDPIECE.encode(text)] == pieces
    # From memory it is the same.
    assert [PIECES[number] for number in WORDPIECE.encode(text)] == pieces


@given(st.text(alphabet="apy rolls?é職\ud800_-", max_size=200))
def test_ids_are_those_of_pieces(text: str) -> None:
    assert all(0 <= number < len(PIECES) for number in WORDPIECE.encode(text))


@given(st.lists(st.sampled_from(["pay", "payroll", "rolls", "a", "aa"]), max_size=20))
def test_words_are_encoded_independently(words: list[str]) -> None:
    apart = [number for word in words for number in WORDPIECE.encode(word)]
    assert WORDPIECE.encode(" ".join(words)) == apart
