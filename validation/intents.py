"""What a prompt wants to know: weighted cues from the rules, a classifier beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from validation.rules import Cue, Rules
from validation.words import words

GENERAL = "general"
# A wish is told at the beginning or at the end of a prompt; what is between is material.
_EDGE_CHARS = 1_000
# The shortest beginning that a star may stand behind.
_LETTERS = 3


class Classifier(Protocol):
    """Tells intents by what it was trained on."""

    def log_odds(self, prompt: str) -> Mapping[str, float]:
        """Return for each intent it knows how much likelier it is than `general`, as ln(p/p₀)."""


class Intents:
    """Adds up what speaks for each intent and names the one with most, `general` if none has any.

    An intent starts at the classifier's log-odds, or without a classifier at minus the rules'
    threshold, so that one cue alone is not enough. Each cue that is there adds its weight once.
    Constant time in a prompt's length: both its ends are looked at.
    """

    def __init__(self, rules: Rules, classifier: Classifier | None = None) -> None:
        self._names = [name for name in rules.intents if name != GENERAL]
        self._threshold = rules.threshold
        self._classifier = classifier
        self._cues = [
            (name, _CueFinder(cue)) for name, intent in rules.intents.items() for cue in intent.cues
        ]
        self._phrases = _PhraseSet(phrase for _, cue in self._cues for phrase in cue.phrases)

    def tell(self, prompt: str) -> str:
        """Return the intent of a prompt."""
        scores = self.scores(prompt)
        best = max(scores, key=scores.__getitem__, default=GENERAL)
        return best if scores and scores[best] > 0 else GENERAL

    def scores(self, prompt: str) -> dict[str, float]:
        """Return how much speaks for each intent but `general`, which stands at 0."""
        prompt = excerpt(prompt)
        scores = dict.fromkeys(self._names, -self._threshold)
        if self._classifier is not None:
            scores |= self._classifier.log_odds(prompt)
        found = self._phrases.found(prompt)
        if not found:
            return scores
        for name, cue in self._cues:
            if cue.is_in(found):
                if name == GENERAL:
                    scores = {other: score - cue.weight for other, score in scores.items()}
                else:
                    scores[name] += cue.weight
        return scores


def excerpt(prompt: str) -> str:
    """Return both ends of a prompt, all of a short one."""
    if len(prompt) <= 2 * _EDGE_CHARS:
        return prompt
    return f"{prompt[:_EDGE_CHARS]}\n{prompt[-_EDGE_CHARS:]}"


class _CueFinder:
    """One cue, by the phrases that it needs."""

    def __init__(self, cue: Cue) -> None:
        self.weight = cue.weight
        self.phrases = (*cue.any, *cue.near)
        self._any = frozenset(cue.any)
        self._near = frozenset(cue.near)

    def is_in(self, found: set[str]) -> bool:
        """Whether a prompt with these phrases in it has this cue."""
        return not self._any.isdisjoint(found) and (
            not self._near or not self._near.isdisjoint(found)
        )


class _PhraseSet:
    """Finds which of many phrases are in a text: a tree of words, walked from every word on."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._root = _Node()
        for phrase in phrases:
            self._root.add(phrase)

    def found(self, text: str) -> set[str]:
        """Return the phrases that are in the text."""
        found: set[str] = set()
        spoken = words(text)
        for at in range(len(spoken)):
            nodes, depth = [self._root], at
            while nodes and depth < len(spoken):
                nodes = [child for node in nodes for child in node.after(spoken[depth])]
                found.update(phrase for node in nodes for phrase in node.ending)
                depth += 1
        return found


class _Node:
    """What may follow some words: whole words, and beginnings by their first letters."""

    __slots__ = ("_beginnings", "_whole", "ending")

    def __init__(self) -> None:
        self._whole: dict[str, _Node] = {}
        self._beginnings: dict[str, dict[str, _Node]] = {}
        self.ending: list[str] = []

    def add(self, phrase: str) -> None:
        node = self
        for word in phrase.lower().split():
            children = node._whole
            if word.endswith("*"):
                word = word[:-1]
                children = node._beginnings.setdefault(word[:_LETTERS], {})
            node = children.setdefault(word, _Node())
        node.ending.append(phrase)

    def after(self, word: str) -> Iterator[_Node]:
        if word in self._whole:
            yield self._whole[word]
        for beginning, node in self._beginnings.get(word[:_LETTERS], {}).items():
            if word.startswith(beginning):
                yield node
