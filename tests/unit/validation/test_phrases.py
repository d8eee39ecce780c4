import pytest

from validation.phrases import Phrases


@pytest.mark.parametrize(
    ("phrase", "text", "expected"),
    [
        ("pay", "What is the PAY?", True),
        ("pay", "a payment", False),
        ("negotiat*", "how to negotiate", True),
        ("negotiat*", "renegotiate", False),
        ("job market", "the job\n  market", True),
        ("job market", "jobmarket", False),
        ("c++", "I know C++, do I?", True),
        ("(a|b)*", "aaaa", False),
        ("how much do … earn", "How much do nurses in the U.K. earn?", True),
        ("how much do … earn", "How much do we earn?", True),
        ("how much do … earn", "How much do earn", True),
        ("how much do … earn", "How much do I need? What do they earn?", False),
        ("how much do … earn", f"How much do {'they ' * 9}earn?", False),
        ("how much do … earn", "How much do they earning", False),
    ],
)
def test_phrase(phrase: str, text: str, expected: bool) -> None:
    assert Phrases([phrase]).search(text) is expected


def test_no_phrases_match_nothing() -> None:
    assert not Phrases([])
    assert not Phrases([]).search("anything")
