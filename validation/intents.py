"""Detection of a prompt's intent from weighted cues of the rules and a classifier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from validation.rules import GENERAL, Cue, Rules
from validation.words import has_words, split_words

# A request is stated at the beginning or the end of a prompt; text in between is material for it.
_EDGE_CHARS = 1_000
# Phrases with a star are indexed by this many first letters, so a star needs at least as many.
_PREFIX_LETTERS = 3


class Classifier(Protocol):
    """Estimates the probabilities of the intents that it was trained on."""

    def log_odds(self, prompt: str) -> Mapping[str, float]:
        """Return the log-odds ln(p/p₀) of each trained intent against `general`."""


class IntentDetector:
    """Scores each intent and selects the highest score, or `general` if no score is above zero.

    A score starts at the negative threshold of the rules, so that one cue alone is not enough. Each
    matching cue adds its weight once; the classifier adds its log-odds times the rules' weight for
    it. In a short prompt an intent also needs cues of its own. Only both ends of the prompt are
    read, so the time does not depend on its length.
    """

    def __init__(self, rules: Rules, classifier: Classifier | None = None) -> None:
        self._names = [name for name in rules.intents if name != GENERAL]
        self._threshold = rules.threshold
        self._weight = rules.classifier
        self._short_prompt = rules.short_prompt
        self._classifier = classifier
        self._cues = [
            (name, _CueFinder(cue)) for name, intent in rules.intents.items() for cue in intent.cues
        ]
        self._phrases = _PhraseSet(phrase for _, cue in self._cues for phrase in cue.phrases)
        # A prompt matches phrases of only a few of some hundred cues; only those are evaluated.
        self._cues_by_phrase: dict[str, list[int]] = {}
        for index, (_, cue) in enumerate(self._cues):
            for phrase in cue.any:
                self._cues_by_phrase.setdefault(phrase, []).append(index)

    def detect(self, prompt: str) -> str:
        """Return the intent of a prompt."""
        scores = self.scores(prompt)
        best = max(scores, key=scores.__getitem__, default=GENERAL)
        return best if scores and scores[best] > 0 else GENERAL

    def scores(self, prompt: str) -> dict[str, float]:
        """Return the scores of all intents except `general`, whose score is 0."""
        prompt = excerpt(prompt)
        is_short = not has_words(prompt, self._short_prompt.words)
        scores = dict.fromkeys(self._names, -self._threshold)
        if self._classifier is not None:
            for name, odds in self._classifier.log_odds(prompt).items():
                if name in scores:
                    scores[name] += self._weight * odds
        matched = self._phrases.find(prompt)
        candidates = {index for phrase in matched for index in self._cues_by_phrase.get(phrase, ())}
        evidence = dict.fromkeys(self._names, 0.0)
        against = 0.0
        for index in sorted(candidates):
            name, cue = self._cues[index]
            if cue.matches(matched):
                if name == GENERAL:
                    against += cue.weight
                else:
                    evidence[name] += cue.weight
        # Rounding corrects floating-point errors: a sum equal to the threshold must give 0.
        totals: dict[str, float] = {}
        for name, score in scores.items():
            total = round(score + evidence[name] - against, 6)
            # Not above zero, so that the prompt is `general`.
            has_evidence = not is_short or evidence[name] >= self._short_prompt.cues
            totals[name] = total if has_evidence else min(total, 0.0)
        return totals


def excerpt(prompt: str) -> str:
    """Return the beginning and the end of a prompt, or all of a short one."""
    if len(prompt) <= 2 * _EDGE_CHARS:
        return prompt
    return f"{prompt[:_EDGE_CHARS]}\n{prompt[-_EDGE_CHARS:]}"


class _CueFinder:
    """Matches one cue against the phrases of a prompt."""

    def __init__(self, cue: Cue) -> None:
        self.weight = cue.weight
        self.any = frozenset(cue.any)
        self.phrases = (*cue.any, *cue.near)
        self._near = frozenset(cue.near)

    def matches(self, phrases: set[str]) -> bool:
        """Return whether a prompt with these phrases matches the cue."""
        return not self.any.isdisjoint(phrases) and (
            not self._near or not self._near.isdisjoint(phrases)
        )


class _PhraseSet:
    """Finds which of many phrases are in a text, with a trie of words."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._root = _PhraseNode()
        for phrase in dict.fromkeys(phrases):
            self._root.add(phrase)

    def find(self, text: str) -> set[str]:
        """Return the phrases that are in the text."""
        matched: set[str] = set()
        root = self._root
        open_phrases: list[_PhraseNode] = []
        for word in split_words(text):
            next_nodes = root.next_nodes_of(word)
            for node in open_phrases:
                next_nodes += node.next_nodes_of(word)
            for node in next_nodes:
                matched.update(node.complete_phrases)
            open_phrases = [node for node in next_nodes if node.has_children]
        return matched


class _PhraseNode:
    """A node of the trie: its children by word, and by prefix for words with a star."""

    __slots__ = ("_prefixes", "_words", "complete_phrases", "has_children")

    def __init__(self) -> None:
        self._words: dict[str, _PhraseNode] = {}
        self._prefixes: dict[str, dict[str, _PhraseNode]] = {}
        self.complete_phrases: list[str] = []
        self.has_children = False

    def add(self, phrase: str) -> None:
        """Add a phrase, split into words like a prompt: "R&D" is two words."""
        node = self
        for part in phrase.split():
            *before, last = split_words(part) or [""]
            for word in before:
                node = node._child(node._words, word)
            if part.endswith("*"):
                prefixes = node._prefixes.setdefault(last[:_PREFIX_LETTERS], {})
                node = node._child(prefixes, last)
            else:
                node = node._child(node._words, last)
        node.complete_phrases.append(phrase)

    def next_nodes_of(self, word: str) -> list[_PhraseNode]:
        """Return the child nodes that match a word."""
        child = self._words.get(word)
        nodes = [] if child is None else [child]
        prefixes = self._prefixes.get(word[:_PREFIX_LETTERS])
        if prefixes:
            nodes += [node for start, node in prefixes.items() if word.startswith(start)]
        return nodes

    def _child(self, children: dict[str, _PhraseNode], word: str) -> _PhraseNode:
        self.has_children = True
        return children.setdefault(word, _PhraseNode())
