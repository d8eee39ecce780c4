"""Figures, currencies and places in text about pay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from validation.rules import Place

_FIGURE = re.compile(r"\d")


class Money:
    """Finds which currencies a text names and which ones the places in it use.

    `currencies` maps a code to the ways it is written; a sign that several share ("$") names all of
    them, so that an answer in dollars fits a question about Canada. Words match whole, signs
    anywhere. Built once; reading it is safe from any thread.
    """

    def __init__(self, currencies: Mapping[str, Sequence[str]], places: Sequence[Place]) -> None:
        codes: dict[str, set[str]] = {}
        for code, written in currencies.items():
            for name in (code, *written):
                codes.setdefault(name.lower(), set()).add(code)
        self._codes = codes
        self._currency = _any_of(codes)
        self._places = {
            name.lower(): frozenset(place.currencies) for place in places for name in place.names
        }
        self._place = _any_of(self._places)

    def has_figure(self, text: str) -> bool:
        """Whether there is a number in the text."""
        return _FIGURE.search(text) is not None

    def currencies(self, text: str) -> frozenset[str]:
        """Return the codes of all currencies that the text may be naming."""
        found = {match.lower() for match in self._currency.findall(text)}
        return frozenset().union(*(self._codes[name] for name in found))

    def expected(self, text: str) -> frozenset[str]:
        """Return the codes of the currencies used in the places a text names."""
        found = {match.lower() for match in self._place.findall(text)}
        return frozenset().union(*(self._places[name] for name in found))


def _any_of(names: Mapping[str, object]) -> re.Pattern[str]:
    """Return a pattern of literals, the longest first; linear, for no literal has a repetition."""
    if not names:
        return re.compile(r"(?!)")
    literals = []
    for name in sorted(names, key=len, reverse=True):
        before = r"(?<!\w)" if name[0].isalpha() else ""
        # "50k USD", "USD50k" and "£50k" alike: a figure may touch the name, a letter may not.
        after = r"(?![^\W\d])" if name[-1].isalpha() else ""
        literals.append(f"{before}{re.escape(name)}{after}")
    return re.compile("|".join(literals), re.IGNORECASE)
