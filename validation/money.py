"""Figures, currencies and places in text about pay."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from validation.linear_pattern import WORD_END, WORD_START, LinearPattern
from validation.rules import Place

_NUMBER = LinearPattern(r"\p{Nd}")
_IN_WORDS = LinearPattern(
    rf"{WORD_START}(?i:(?:hundred|thousand|million|lakh|crore)s?|(?:five|six|seven)[- ]figures?"
    rf"|nothing|unpaid){WORD_END}"
)
_MULTIPLIERS = {"k", "m", "hundred", "thousand", "million", "lakh", "crore"}
# An answer about pay is much shorter, a prompt says at its beginning what it is about.
_MAX_CHARS = 100_000
# A run of letters, a run of digits, or a sign: "C$50k" is C, $, 50 and k.
_TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")


class MoneyFinder:
    """Finds which currencies a text names and which ones the places in it use.

    `currencies` maps a code to the ways it is written; a sign that several share ("$") names all of
    them, so that an answer in dollars fits a question about Canada. Names match as whole words, in
    any case but for those all in capitals: TRY is a currency, "try" is not. Built once; reading it
    is safe from any thread.
    """

    def __init__(self, currencies: Mapping[str, Sequence[str]], places: Sequence[Place]) -> None:
        self._codes: dict[str, set[str]] = {}
        for code, written in currencies.items():
            for name in (code, *written):
                self._codes.setdefault(name, set()).add(code)
        self._places = {name: place.currencies for place in places for name in place.names}
        self._currency = _NameFinder(self._codes)
        self._place = _NameFinder(self._places)

    def has_number(self, text: str) -> bool:
        """Whether there is a number in the text, in digits."""
        return _NUMBER.search(text)

    def has_amount_in_words(self, text: str) -> bool:
        """Whether the text says how much without digits: a million, a six-figure sum, nothing."""
        return _IN_WORDS.search(text)

    def currencies(self, text: str) -> frozenset[str]:
        """Return the codes of all currencies that the text may be naming."""
        found = {name for name, _, _ in self._currency.spans(_tokenize(text))}
        return frozenset().union(*(self._codes[name] for name in found))

    def amounts(self, text: str) -> list[str]:
        """Return the names, as in the rules, of the currencies that stand beside a figure.

        Elsewhere a name may be no currency: "she won an award", "the pound sign", "CAD drawings".
        """
        tokens = _tokenize(text)
        found = self._currency.spans(tokens)
        return sorted({name for name, *at in found if _is_next_to_figure(name, tokens, *at)})

    def expected(self, text: str) -> frozenset[str]:
        """Return the codes of the currencies used in the places a text names."""
        found = {name for name, _, _ in self._place.spans(_tokenize(text))}
        return frozenset().union(*(self._places[name] for name in found))


class _NameFinder:
    """Finds names in a text: one look-up for each of its tokens, however many names there are."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_first: dict[str, list[tuple[list[str], str]]] = {}
        # The longest first: nobody in New Mexico is paid in pesos.
        for name in sorted(names, key=len, reverse=True):
            tokens = _tokenize(name if name.isupper() else name.lower())
            self._by_first.setdefault(tokens[0].lower(), []).append((tokens, name))

    def spans(self, tokens: Sequence[str]) -> Iterator[tuple[str, int, int]]:
        """Yield each name that is found, and where in the tokens it begins and ends."""
        lower = [token.lower() for token in tokens]
        reached = 0
        for at, first in enumerate(lower):
            if at < reached or first not in self._by_first:
                continue
            for parts, name in self._by_first[first]:
                end = at + len(parts)
                if (tokens if name.isupper() else lower)[at:end] == parts:
                    yield name, at, end
                    reached = end
                    break


def _tokenize(text: str) -> list[str]:
    return _TOKEN.findall(text, 0, _MAX_CHARS)


def _is_next_to_figure(name: str, tokens: Sequence[str], start: int, end: int) -> bool:
    if len(name) == 1 and name.isalpha():
        # N95 is a mask, R 4.3 a language.
        return False
    before = tokens[start - 1].lower() if start else ""
    if before.isdigit() or before in _MULTIPLIERS:
        return True
    # Words stand behind a figure, signs and abbreviations on either side: "£5", "Rs 500", "5 won".
    is_word = name.isalpha() and name.islower()
    return not is_word and end < len(tokens) and tokens[end].isdigit()
