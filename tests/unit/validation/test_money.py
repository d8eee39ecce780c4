import pytest

from validation.money import Money
from validation.rules import Place

MONEY = Money(
    {"USD": ["$", "dollars"], "CAD": ["$", "C$"], "GBP": ["£", "pounds"], "EUR": ["€"]},
    [
        Place(names=["Canada", "Toronto"], currencies=["CAD"]),
        Place(names=["UK", "London"], currencies=["GBP"]),
    ],
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("about $50k", {"USD", "CAD"}),
        ("£42,000 or 50k EUR", {"GBP", "EUR"}),
        ("USD50k", {"USD"}),
        ("compounds and pounded", set()),
        ("ten Pounds", {"GBP"}),
        ("no money here", set()),
    ],
)
def test_currencies(text: str, found: set[str]) -> None:
    assert MONEY.currencies(text) == found


def test_places() -> None:
    assert MONEY.expected("a nurse in london, or Toronto?") == {"GBP", "CAD"}
    assert MONEY.expected("Londonderry") == frozenset()


def test_without_any_rules_nothing_is_found() -> None:
    empty = Money({}, [])
    assert empty.currencies("$5") == empty.expected("London") == frozenset()
    assert empty.has_figure("5")
    assert not empty.has_figure("five")
