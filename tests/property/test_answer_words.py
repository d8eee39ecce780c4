"""The checks of an answer's words, compared with simple and slow implementations."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from validation.overlap import find_shared_passages
from validation.phrases import Phrases
from validation.repetition import find_longest_loop
from validation.words import has_words, split_words

ANY = st.text(st.characters(exclude_categories=()), max_size=60)
ASCII = st.text(st.sampled_from("aB1_ .'+-#\n!"), max_size=60)
TOKENS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=60)


@given(ASCII)
def test_words_do_not_depend_on_letters_of_other_alphabets(text: str) -> None:
    assert split_words(f"{text} é") == [*split_words(text), "é"]


@given(ANY | ASCII, st.integers(0, 20))
def test_has_words_agrees_with_the_number_of_words(text: str, minimum: int) -> None:
    assert has_words(text, minimum) == (len(split_words(text)) >= minimum)


@given(TOKENS)
def test_the_longest_run_of_equal_distances(tokens: list[str]) -> None:
    last: dict[tuple[str, ...], int] = {}
    expected, period, run = 0, 0, 0
    for at in range(len(tokens) - 2):
        gram = tuple(tokens[at : at + 3])
        distance = at - last.get(gram, at)
        last[gram] = at
        period, run = distance, run + 1 if distance == period else 1
        if run >= period > 0:
            expected = max(expected, run + period + 2)
    loop = find_longest_loop(tokens)
    assert (loop.length if loop else 0) == expected
    if loop:
        repeated = tokens[loop.start : loop.start + loop.length]
        assert repeated[loop.period :] == repeated[: -loop.period]


@given(TOKENS, TOKENS, st.integers(1, 7))
def test_all_passages_in_both_texts(theirs: list[str], ours: list[str], length: int) -> None:
    def runs(tokens: list[str]) -> list[list[str]]:
        return [tokens[at : at + length] for at in range(len(tokens) - length + 1)]

    shared = [run in runs(theirs) for run in runs(ours)]
    inside = [any(shared[max(0, at - length + 1) : at + 1]) for at in range(len(ours))]
    assert " ".join(find_shared_passages(theirs, ours, length)) == " ".join(
        word for word, is_inside in zip(ours, inside, strict=True) if is_inside
    )


@given(
    st.lists(st.sampled_from(["a", "é", "b+", "炸"]), min_size=1, max_size=3).map("".join),
    st.lists(st.sampled_from([*"abéÉ+_1 ²炸\u0301", "\ud800", "\u2028", "\x1c"]), max_size=8),
)
def test_a_phrase_is_no_part_of_a_word_in_any_alphabet(phrase: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    behind = r"(?!\w)" if phrase[-1].isalnum() else ""
    expected = re.search(rf"(?<!\w){re.escape(phrase)}{behind}", text.lower())
    assert Phrases([phrase]).search(text) == bool(expected)
    started = re.search(rf"(?<!\w){re.escape(phrase)}\w*\s+b", text.lower())
    assert Phrases([f"{phrase}* b*"]).search(text) == bool(started)
