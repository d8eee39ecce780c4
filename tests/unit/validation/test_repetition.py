import pytest

from validation.repetition import find_longest_loop
from validation.words import split_words

CLAUSE = "the quick brown fox jumps over the lazy dog and runs away again"


@pytest.mark.parametrize(
    ("text", "period", "times"),
    [
        ("no " * 20, 1, 20),
        ("I am a model. " * 6, 4, 6),
        ("Well then. " + "go on " * 9, 2, 9),
        (f"{CLAUSE}. " * 3, 13, 3),
        ("ha" * 40, 2, 40),
        ("再见吧" * 10, 3, 10),
    ],
)
def test_loop_is_detected_at_any_period(text: str, period: int, times: float) -> None:
    loop = find_longest_loop(split_words(text))
    assert loop is not None
    assert loop.period == period
    assert loop.times == pytest.approx(times)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "one two",
        CLAUSE,
        "The cat sat. The dog sat. The cow sat.",
        "| a | 1 |\n| b | 2 |\n| c | 3 |",
        "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz1",
        "0, " * 81,
        "0101" * 20,
        f"Name: {'_' * 60}",
    ],
)
def test_varied_text_has_no_loop(text: str) -> None:
    loop = find_longest_loop(split_words(text))
    assert loop is None or loop.times < 3


def test_words() -> None:
    assert split_words("Don’t use C++ or node.js, full-time!") == [
        "don't",
        "use",
        "c++",
        "or",
        "node.js",
        "full-time",
    ]
    assert split_words("你好 world") == ["你", "好", "world"]
