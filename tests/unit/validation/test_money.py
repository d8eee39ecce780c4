import pytest

from validation.money import MoneyFinder
from validation.rules import Place

MONEY = MoneyFinder(
    {
        "USD": ["$", "dollars"],
        "CAD": ["$", "C$"],
        "GBP": ["£", "pounds"],
        "EUR": ["€"],
        "TRY": [],
        "INR": ["Rs"],
        "KRW": ["won"],
        "NGN": ["N"],
        "NAD": ["N$"],
    },
    [
        Place(names=["Canada", "Toronto"], currencies=["CAD"]),
        Place(names=["UK", "London"], currencies=["GBP"]),
        Place(names=["New London", "US"], currencies=["USD"]),
    ],
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("about $50k", {"USD", "CAD"}),
        ("£42,000 or 50k EUR", {"GBP", "EUR"}),
        ("USD50k", {"USD"}),
        ("compounds and pounded", set()),
        ("ten Pounds", {"GBP"}),
        ("no money here", set()),
        ("You try usd", set()),
        ("TRY 9 or C$9", {"TRY", "CAD"}),
        ("N$9", {"NAD"}),
    ],
)
def test_currencies(text: str, expected: set[str]) -> None:
    assert MONEY.currencies(text) == expected


def test_places() -> None:
    assert MONEY.expected("a nurse in london, or Toronto?") == {"GBP", "CAD"}
    assert MONEY.expected("Londonderry") == frozenset()
    assert MONEY.expected("in New London") == {"USD"}
    assert MONEY.expected("What do they pay us?") == frozenset()
    assert MONEY.expected("In the US") == {"USD"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("$9, 50k EUR, 2 million dollars", ["$", "EUR", "dollars"]),
        ("£ 9 and USD50k and Rs 500", ["Rs", "USD", "£"]),
        ("She won 3 prizes, dollars: 9", []),
        ("3000 won", ["won"]),
        ("N 4.3, N95 and 3 N", []),
        ("the $ and the €", []),
    ],
)
def test_amounts_requires_a_number_next_to_the_currency(text: str, names: list[str]) -> None:
    assert MONEY.amounts(text) == names


def test_finder_without_rules_finds_nothing() -> None:
    empty = MoneyFinder({}, [])
    assert empty.currencies("$5") == empty.expected("London") == frozenset()


@pytest.mark.parametrize(
    ("text", "number", "in_words"),
    [
        ("5", True, False),
        ("five", False, False),
        ("thirty thousand", False, True),
        ("a six-figure sum", False, True),
        ("Nothing, they are unpaid for 2 months.", True, True),
    ],
)
def test_has_number_and_has_amount_in_words(text: str, number: bool, in_words: bool) -> None:
    assert MONEY.has_number(text) is number
    assert MONEY.has_amount_in_words(text) is in_words
