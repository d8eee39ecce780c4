"""What is not to be answered at all: intents and words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import re2

from validation.findings import Issue
from validation.linear_pattern import OTHER_SPACE, LinearPattern, literal

# What is not seen: Default_Ignorable_Code_Point in Unicode's DerivedCoreProperties.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
# Normalising sorts the marks on a letter, which takes quadratic time where there are thousands; 30
# are what Unicode calls stream-safe (UAX #15), more than any language has.
_EXCESS_MARKS: Any = re2.compile(rb"(\p{M}{30})\p{M}+")
# They stand for whole sentences, 18 characters each, and are left as they are.
_ORNAMENTS = ("\ufdfa", "\ufdfb")

# Scripts that put no spaces between words, or endings right behind them: Thai to Burmese, Khmer,
# kana, Chinese, Hangul. Each of their characters is a word.
_UNSPACED_SCRIPTS = (
    "\u0e00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and accents that stay apart; of letters that have no such form they do.
_COMBINING_SIGNS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0966-\u0dff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
# Beside a word there is no letter. An underscore is none: it is how Markdown stresses a word.
_NON_LETTER = rf"(?:[^\pL\pN{_COMBINING_SIGNS}]|[{_UNSPACED_SCRIPTS}])"
_UNSPACED_CHAR = re.compile(f"[{_UNSPACED_SCRIPTS}]")
# White space that is not one blank between two other characters.
_IRREGULAR_SPACE = LinearPattern(rf"[\x00{OTHER_SPACE}]|  |\A | \z")

# So many characters of terms make one expression: all that there is to know of it fits into RE2's
# memory, whatever the terms and the text. Each takes some 2 ms for a megabyte.
_MAX_EXPRESSION_CHARS = 4_000


class Blocklist:
    """Tells whether a request is one that nothing must be generated for.

    Terms are literal and match whole words, in any case and any form of the same characters, also
    when invisible ones are put between. The message does not repeat them: it goes to the client.

    Raises:
        ValueError: a term has nothing visible in it.
    """

    def __init__(self, terms: Collection[str] = (), intents: Collection[str] = ()) -> None:
        self._intents = frozenset(intents)
        self._terms = [LinearPattern(_any_of(some)) for some in _split_terms(terms)]

    def find_block(self, text: str, intent: str) -> Issue | None:
        """Return why a text of an intent must not be answered, if so."""
        if intent in self._intents:
            return Issue("blocked_intent", "Requests of this kind are not answered here.")
        plain = _normalize(text) if self._terms else ""
        if any(terms.search(plain) for terms in self._terms):
            message = "The request contains a word or phrase that is not allowed here."
            return Issue("blocked_term", message)
        return None


def _split_terms(terms: Collection[str]) -> Iterator[list[str]]:
    """Yield the terms in the form they are looked for, a few thousand characters at a time."""
    some: list[str] = []
    size = 0
    for term in sorted(map(_normalize, terms)):
        if not term:
            raise ValueError("A blocked term must have something visible in it.")
        if some and size + len(term) > _MAX_EXPRESSION_CHARS:
            yield some
            some, size = [], 0
        some.append(term)
        size += len(term)
    if some:
        yield some


def _any_of(terms: Iterable[str]) -> str:
    """Return the expression that matches any of some terms, none of them in a longer word."""
    groups: dict[tuple[str, str], list[str]] = {}
    for term in terms:
        before, behind = (
            "" if _UNSPACED_CHAR.match(char) else rf"(?:{end}|{_NON_LETTER})"
            for char, end in ((term[0], r"\A"), (term[-1], r"\z"))
        )
        groups.setdefault((before, behind), []).append(literal(term))
    return "|".join(
        f"{before}(?:{'|'.join(literals)}){behind}" for (before, behind), literals in groups.items()
    )


def _normalize(text: str) -> str:
    """Return a text in the form in which equal is equal, with one blank for any white space."""
    text = _casefold(text)
    return " ".join(text.replace("\0", " ").split()) if _IRREGULAR_SPACE.search(text) else text


def _casefold(text: str) -> str:
    """Return a text in Unicode's form for comparing without case (NFKC_Casefold, roughly)."""
    if text.isascii():
        return text.lower()
    raw = _INVISIBLE.sub("", text).encode("utf-8", "replace")
    return _nfkc(_nfkc(_EXCESS_MARKS.sub(rb"\1", raw).decode()).casefold())


def _nfkc(text: str) -> str:
    for ornament in _ORNAMENTS:
        if ornament in text:
            return ornament.join(map(_nfkc, text.split(ornament)))
    return unicodedata.normalize("NFKC", text)
