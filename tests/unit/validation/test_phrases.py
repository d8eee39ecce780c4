import pytest

from validation.phrases import Phrases


@pytest.mark.parametrize(
    ("phrase", "text", "found"),
    [
        ("pay", "What is the PAY?", True),
        ("pay", "a payment", False),
        ("negotiat*", "how to negotiate", True),
        ("negotiat*", "renegotiate", False),
        ("job market", "the job\n  market", True),
        ("job market", "jobmarket", False),
        ("c++", "I know C++, do I?", True),
        ("(a|b)*", "aaaa", False),
    ],
)
def test_phrase(phrase: str, text: str, found: bool) -> None:
    assert Phrases([phrase]).search(text) is found


def test_none_finds_nothing() -> None:
    assert not Phrases([])
    assert not Phrases([]).search("anything")
    assert Phrases([]).found("anything") == set()


def test_all_that_is_found_is_told() -> None:
    assert Phrases(["salar*", "bonus"]).found("Salaries and a BONUS and salary") == {
        "salaries",
        "bonus",
        "salary",
    }
