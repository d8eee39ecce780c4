"""What a prompt wants to know: weighted cues from the rules, a classifier beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from validation.rules import GENERAL, Cue, Rules
from validation.words import split_words

# A wish is told at the beginning or at the end of a prompt; what is between is material.
_EDGE_CHARS = 1_000
# The shortest beginning that a star may stand behind.
_PREFIX_LETTERS = 3


class Classifier(Protocol):
    """Tells intents by what it was trained on."""

    def log_odds(self, prompt: str) -> Mapping[str, float]:
        """Return for each intent it knows how much likelier it is than `general`, as ln(p/p₀)."""


class IntentDetector:
    """Adds up what speaks for each intent and names the one with most, `general` if none has any.

    An intent starts below zero by the rules' threshold, so that one cue alone is not enough. Each
    cue that is there adds its weight once, a classifier its log-odds, weighted as the rules say.
    Constant time in a prompt's length: both its ends are looked at.
    """

    def __init__(self, rules: Rules, classifier: Classifier | None = None) -> None:
        self._names = [name for name in rules.intents if name != GENERAL]
        self._threshold = rules.threshold
        self._weight = rules.classifier
        self._classifier = classifier
        self._cues = [
            (name, _CueFinder(cue)) for name, intent in rules.intents.items() for cue in intent.cues
        ]
        self._phrases = _PhraseSet(phrase for _, cue in self._cues for phrase in cue.phrases)
        # Of some hundred cues a prompt has the phrases of a few: these alone are looked at.
        self._cues_with: dict[str, list[int]] = {}
        for at, (_, cue) in enumerate(self._cues):
            for phrase in cue.any:
                self._cues_with.setdefault(phrase, []).append(at)

    def detect(self, prompt: str) -> str:
        """Return the intent of a prompt."""
        scores = self.scores(prompt)
        best = max(scores, key=scores.__getitem__, default=GENERAL)
        return best if scores and scores[best] > 0 else GENERAL

    def scores(self, prompt: str) -> dict[str, float]:
        """Return how much speaks for each intent but `general`, which stands at 0."""
        prompt = excerpt(prompt)
        scores = dict.fromkeys(self._names, -self._threshold)
        if self._classifier is not None:
            for name, odds in self._classifier.log_odds(prompt).items():
                if name in scores:
                    scores[name] += self._weight * odds
        found = self._phrases.found(prompt)
        likely = {at for phrase in found for at in self._cues_with.get(phrase, ())}
        against = 0.0
        for at in sorted(likely):
            name, cue = self._cues[at]
            if cue.is_in(found):
                if name == GENERAL:
                    against += cue.weight
                else:
                    scores[name] += cue.weight
        # Tenths do not add up exactly, and what only reaches the threshold must not be above it.
        return {name: round(score - against, 6) for name, score in scores.items()}


def excerpt(prompt: str) -> str:
    """Return both ends of a prompt, all of a short one."""
    if len(prompt) <= 2 * _EDGE_CHARS:
        return prompt
    return f"{prompt[:_EDGE_CHARS]}\n{prompt[-_EDGE_CHARS:]}"


class _CueFinder:
    """One cue, by the phrases that it needs."""

    def __init__(self, cue: Cue) -> None:
        self.weight = cue.weight
        self.any = frozenset(cue.any)
        self.phrases = (*cue.any, *cue.near)
        self._near = frozenset(cue.near)

    def is_in(self, found: set[str]) -> bool:
        """Whether a prompt with these phrases in it has this cue."""
        return not self.any.isdisjoint(found) and (
            not self._near or not self._near.isdisjoint(found)
        )


class _PhraseSet:
    """Finds which of many phrases are in a text: a tree of words, walked from every word on."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._root = _PhraseNode()
        for phrase in dict.fromkeys(phrases):
            self._root.add(phrase)

    def found(self, text: str) -> set[str]:
        """Return the phrases that are in the text."""
        found: set[str] = set()
        root = self._root
        open_phrases: list[_PhraseNode] = []
        for word in split_words(text):
            reached = root.after(word)
            for node in open_phrases:
                reached += node.after(word)
            for node in reached:
                found.update(node.ending)
            open_phrases = [node for node in reached if node.goes_on]
        return found


class _PhraseNode:
    """What may follow some words: whole words, and beginnings by their first letters."""

    __slots__ = ("_beginnings", "_whole", "ending", "goes_on")

    def __init__(self) -> None:
        self._whole: dict[str, _PhraseNode] = {}
        self._beginnings: dict[str, dict[str, _PhraseNode]] = {}
        self.ending: list[str] = []
        self.goes_on = False

    def add(self, phrase: str) -> None:
        """Add a phrase, in words as a prompt has them: "R&D" is two."""
        node = self
        for part in phrase.split():
            *before, last = split_words(part) or [""]
            for word in before:
                node = node._child(node._whole, word)
            if part.endswith("*"):
                beginnings = node._beginnings.setdefault(last[:_PREFIX_LETTERS], {})
                node = node._child(beginnings, last)
            else:
                node = node._child(node._whole, last)
        node.ending.append(phrase)

    def after(self, word: str) -> list[_PhraseNode]:
        """Return where a word leads."""
        whole = self._whole.get(word)
        nodes = [] if whole is None else [whole]
        beginnings = self._beginnings.get(word[:_PREFIX_LETTERS])
        if beginnings:
            nodes += [node for start, node in beginnings.items() if word.startswith(start)]
        return nodes

    def _child(self, children: dict[str, _PhraseNode], word: str) -> _PhraseNode:
        self.goes_on = True
        return children.setdefault(word, _PhraseNode())
