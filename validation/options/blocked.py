"""What is not to be answered at all: intents and words."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import re2  # type: ignore[import-untyped]

from validation.findings import Issue

# What is not seen: Default_Ignorable_Code_Point in Unicode's DerivedCoreProperties.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
# Normalising sorts the marks on a letter, which takes quadratic time where there are thousands; 30
# are what Unicode calls stream-safe (UAX #15), more than any language has.
_MARKS: Any = re2.compile(rb"(\p{M}{30})\p{M}+")
# All but two ornaments which stand for whole sentences, 18 characters each.
_NORMAL = re.compile("[^\ufdfa\ufdfb]+")

# Scripts that put no spaces between words, or endings right behind them: Thai to Burmese, Khmer,
# kana, Chinese, Hangul. Each of their characters is a word.
_UNSPACED = (
    "\u0e00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and accents that stay apart; of letters that have no such form they do.
_SIGNS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0966-\u0dff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
# An underscore is no part of a word: it is how Markdown stresses one.
_LETTER = rf"(?:[^\W_{_UNSPACED}]|[{_SIGNS}])"
_OTHER = rf"(?:[^\w\s\0{_SIGNS}{_UNSPACED}]|_)"
_TOUCHING = re.compile(rf"(?<={_LETTER})(?={_OTHER})|(?<={_OTHER})(?={_LETTER})")
_TOKENS = re.compile(rf"{_LETTER}+|\0?{_OTHER}\0?|[{_UNSPACED}]| ")


class Blocklist:
    """Tells whether a request is one that nothing must be generated for.

    Terms are literal and match whole words, in any case and any form of the same characters, also
    when invisible ones are put between. The message does not repeat them: it goes to the client.

    Raises:
        ValueError: a term has nothing visible in it.
    """

    def __init__(self, terms: Collection[str] = (), intents: Collection[str] = ()) -> None:
        self._intents = frozenset(intents)
        self._terms = _Automaton([_tokens(term) for term in terms]) if terms else None

    def blocks(self, text: str, intent: str) -> Issue | None:
        """Return why a text of an intent must not be answered, if so."""
        if intent in self._intents:
            return Issue("blocked_intent", "Requests of this kind are not answered here.")
        if self._terms is not None and self._terms.found(_tokens(text)):
            message = "The request contains a word or phrase that is not allowed here."
            return Issue("blocked_term", message)
        return None


def _tokens(text: str) -> list[str]:
    """Return a text as words and single other characters, in the form in which equal is equal.

    What is no letter is another token where it touches a word: ".net" is not in "asp.net".
    """
    folded = " ".join(_folded(text).replace("\0", " ").split())
    return _TOKENS.findall(_TOUCHING.sub("\0", folded))


def _folded(text: str) -> str:
    """Return a text in Unicode's form for comparing without case (NFKC_Casefold, roughly)."""
    if text.isascii():
        return text.lower()
    raw = _INVISIBLE.sub("", text).encode("utf-8", "replace")
    return _normal(_normal(_MARKS.sub(rb"\1", raw).decode()).casefold())


def _normal(text: str) -> str:
    return _NORMAL.sub(lambda match: unicodedata.normalize("NFKC", match.group()), text)


class _Automaton:
    """Finds any of several sequences in one pass, however they overlap (Aho and Corasick, 1975)."""

    def __init__(self, sequences: Sequence[Sequence[str]]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._ends = [False]
        for sequence in sequences:
            if not any(token.strip() for token in sequence):
                raise ValueError("A blocked term must have something visible in it.")
            state = 0
            for token in sequence:
                if token not in self._next[state]:
                    self._next[state][token] = len(self._next)
                    self._next.append({})
                    self._ends.append(False)
                state = self._next[state][token]
            self._ends[state] = True
        self._back = [0] * len(self._next)
        pending = deque(self._next[0].values())
        while pending:
            state = pending.popleft()
            for token, child in self._next[state].items():
                self._back[child] = self._step(self._back[state], token)
                self._ends[child] |= self._ends[self._back[child]]
                pending.append(child)

    def found(self, tokens: Iterable[str]) -> bool:
        """Whether any of the sequences is in another one."""
        state, first = 0, self._next[0]
        for token in tokens:
            state = self._step(state, token) if state else first.get(token, 0)
            if self._ends[state]:
                return True
        return False

    def _step(self, state: int, token: str) -> int:
        while state and token not in self._next[state]:
            state = self._back[state]
        return self._next[state].get(token, 0)
