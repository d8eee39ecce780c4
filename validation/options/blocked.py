"""Blocking of requests by their intent or by terms in them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import re2

from validation.issues import Issue
from validation.linear_pattern import OTHER_SPACE, LinearPattern, literal
from validation.options.folded_text import INVISIBLE

# Normalisation sorts the marks of a letter, in quadratic time. So at most 30 are kept, the limit of
# Unicode's stream-safe format (UAX #15), more than any language uses.
_EXCESS_MARKS: Any = re2.compile(rb"(\p{M}{30})\p{M}+")
# NFKC expands each of these to a sentence of 18 characters, so they are not normalised.
_ORNAMENTS = ("\ufdfa", "\ufdfb")

# Scripts without spaces between words, or with suffixes attached to words: Thai to Burmese, Khmer,
# kana, Chinese, Hangul. Each of their characters counts as a word.
_UNSPACED_SCRIPTS = (
    "\u0e00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and accents that remain separate characters after normalisation, because their letters
# have no composed form.
_COMBINING_SIGNS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0966-\u0dff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
# The character next to a word. An underscore counts, because Markdown uses it for emphasis.
_NON_LETTER = rf"(?:[^\pL\pN{_COMBINING_SIGNS}]|[{_UNSPACED_SCRIPTS}])"
_UNSPACED_CHAR = re.compile(f"[{_UNSPACED_SCRIPTS}]")
# White space other than a single space between two other characters.
_IRREGULAR_SPACE = LinearPattern(rf"[\x00{OTHER_SPACE}]|  |\A | \z")

# Maximum length of the terms in one expression, so that its automaton fits into RE2's memory for
# any terms and texts. Each expression takes about 2 ms per megabyte.
_MAX_EXPRESSION_CHARS = 4_000


class Blocklist:
    """Detects requests that must not be answered.

    Terms are literal and match whole words, ignoring case, Unicode form and invisible characters.
    The message does not contain the term, because it is sent to the client.

    Raises:
        ValueError: a term has no visible characters.
    """

    def __init__(self, terms: Collection[str] = (), intents: Collection[str] = ()) -> None:
        self._intents = frozenset(intents)
        self._terms = [LinearPattern(_any_of(batch)) for batch in _split_terms(terms)]

    def find_block(self, text: str, intent: str) -> Issue | None:
        """Return the reason not to answer a request with this text and intent, or None."""
        if intent in self._intents:
            return Issue("blocked_intent", "Requests of this kind are not answered here.")
        plain = _normalize(text) if self._terms else ""
        if any(terms.search(plain) for terms in self._terms):
            message = "The request contains a word or phrase that is not allowed here."
            return Issue("blocked_term", message)
        return None


def _split_terms(terms: Collection[str]) -> Iterator[list[str]]:
    """Yield the normalised terms in groups of at most _MAX_EXPRESSION_CHARS characters."""
    batch: list[str] = []
    size = 0
    for term in sorted(map(_normalize, terms)):
        if not term:
            raise ValueError("A blocked term must have something visible in it.")
        if batch and size + len(term) > _MAX_EXPRESSION_CHARS:
            yield batch
            batch, size = [], 0
        batch.append(term)
        size += len(term)
    if batch:
        yield batch


def _any_of(terms: Iterable[str]) -> str:
    """Return an expression that matches any of the terms as a whole word."""
    groups: dict[tuple[str, str], list[str]] = {}
    for term in terms:
        before, after = (
            "" if _UNSPACED_CHAR.match(char) else rf"(?:{end}|{_NON_LETTER})"
            for char, end in ((term[0], r"\A"), (term[-1], r"\z"))
        )
        groups.setdefault((before, after), []).append(literal(term))
    return "|".join(
        f"{before}(?:{'|'.join(literals)}){after}" for (before, after), literals in groups.items()
    )


def _normalize(text: str) -> str:
    """Return a text in a form for comparisons, with a single space for any white space."""
    text = _casefold(text)
    return " ".join(text.replace("\0", " ").split()) if _IRREGULAR_SPACE.search(text) else text


def _casefold(text: str) -> str:
    """Return a text in Unicode's form for caseless comparisons (approximately NFKC_Casefold)."""
    if text.isascii():
        return text.lower()
    raw = INVISIBLE.sub("", text).encode("utf-8", "replace")
    return _nfkc(_nfkc(_EXCESS_MARKS.sub(rb"\1", raw).decode()).casefold())


def _nfkc(text: str) -> str:
    for ornament in _ORNAMENTS:
        if ornament in text:
            return ornament.join(map(_nfkc, text.split(ornament)))
    return unicodedata.normalize("NFKC", text)
