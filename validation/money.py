"""Amounts, currencies and places in texts about pay."""

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
# Only this much of a text is read: an answer about pay is shorter, and a prompt states its subject
# at the beginning.
_MAX_CHARS = 100_000
# A run of letters, a run of digits, or a sign: "C$50k" is C, $, 50 and k.
_TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")


class MoneyFinder:
    """Finds the currencies that a text names, and the currencies of the places in it.

    `currencies` maps a code to its names and signs. A sign of several currencies ("$") stands for
    all of them, so that an answer in dollars fits a question about Canada. Names match as whole
    words, ignoring case, except names in capitals: TRY is a currency, "try" is not. Read-only after
    construction, so any thread may use it.
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
        """Return whether the text has a number in digits."""
        return _NUMBER.search(text)

    def has_amount_in_words(self, text: str) -> bool:
        """Return whether the text has an amount in words: a million, a six-figure sum, nothing."""
        return _IN_WORDS.search(text)

    def currencies(self, text: str) -> frozenset[str]:
        """Return the codes of all currencies that the text may name."""
        names = {name for name, _, _ in self._currency.spans(_tokenize(text))}
        return frozenset().union(*(self._codes[name] for name in names))

    def amounts(self, text: str) -> list[str]:
        """Return the names, as in the rules, of the currencies next to a number.

        Elsewhere the word may mean something else: "she won an award", "CAD drawings".
        """
        tokens = _tokenize(text)
        names = self._currency.spans(tokens)
        return sorted({name for name, *at in names if _is_next_to_figure(name, tokens, *at)})

    def expected(self, text: str) -> frozenset[str]:
        """Return the codes of the currencies of the places that a text names."""
        names = {name for name, _, _ in self._place.spans(_tokenize(text))}
        return frozenset().union(*(self._places[name] for name in names))


class _NameFinder:
    """Finds names in a text with one dict lookup per token, for any number of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_first: dict[str, list[tuple[list[str], str]]] = {}
        # The longest names first, so that "New Mexico" is not read as Mexico.
        for name in sorted(names, key=len, reverse=True):
            tokens = _tokenize(name if name.isupper() else name.lower())
            self._by_first.setdefault(tokens[0].lower(), []).append((tokens, name))

    def spans(self, tokens: Sequence[str]) -> Iterator[tuple[str, int, int]]:
        """Yield each name in the tokens with the indexes of its start and end."""
        lowercase_tokens = [token.lower() for token in tokens]
        end_of_last = 0
        for at, first in enumerate(lowercase_tokens):
            if at < end_of_last or first not in self._by_first:
                continue
            for parts, name in self._by_first[first]:
                end = at + len(parts)
                if (tokens if name.isupper() else lowercase_tokens)[at:end] == parts:
                    yield name, at, end
                    end_of_last = end
                    break


def _tokenize(text: str) -> list[str]:
    return _TOKEN.findall(text, 0, _MAX_CHARS)


def _is_next_to_figure(name: str, tokens: Sequence[str], start: int, end: int) -> bool:
    if len(name) == 1 and name.isalpha():
        # A single letter before a number is ambiguous: N95 is a mask, R 4.3 a language.
        return False
    before = tokens[start - 1].lower() if start else ""
    if before.isdigit() or before in _MULTIPLIERS:
        return True
    # Words follow a number, signs and abbreviations may be on either side: "£5", "Rs 500", "5 won".
    is_word = name.isalpha() and name.islower()
    return not is_word and end < len(tokens) and tokens[end].isdigit()
