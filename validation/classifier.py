"""A linear classifier of intents, trained on the project's prompts (tools/intents)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

from validation.arrays import import_numpy

WEIGHTS = Path(__file__).with_name("intents.npz")
# Features are numbered by a hash; a collision only adds two weights.
FEATURES = 1 << 17
_WORDS = re.compile(r"[^\W_]+|[^\w\s]|_")
# The number of words that are read at the beginning and at the end of a prompt.
_EDGE_WORDS = 32
_NGRAM_LENGTHS = (3, 4, 5)


class MissingNumpy(Exception):
    """numpy is not installed; the classifier needs it."""


class IntentClassifier:
    """A logistic regression over words, pairs of words and their character n-grams.

    The file has one row of weights per feature and one column per label, as 8-bit integers with a
    common scale. The object is read-only after construction, so any number of threads may use it
    at the same time.

    Raises:
        MissingNumpy: numpy is not installed.
    """

    def __init__(self, path: Path = WEIGHTS) -> None:
        if find_spec("numpy") is None:
            raise MissingNumpy
        self._np = np = import_numpy()
        with np.load(path) as file:
            self._labels: list[str] = file["labels"].tolist()
            self._weights: Any = file["weights"]
            self._scale = float(file["scale"])
            self._bias: Any = file["bias"]

    def log_odds(self, prompt: str) -> Mapping[str, float]:
        """Return ln(p/p₀) of each intent, p₀ being the likelihood of the last label, `general`."""
        ids = feature_ids(prompt)
        sums = self._weights[ids].sum(0, dtype=self._np.int32)
        logits = sums * (self._scale / len(ids) ** 0.5) + self._bias
        odds = (logits[:-1] - logits[-1]).tolist()
        return dict(zip(self._labels[:-1], odds, strict=True))


def feature_ids(prompt: str) -> Sequence[int]:
    """Return the sorted ids of a prompt's features, without case and accents; at least one id."""
    words = _WORDS.findall(_normalize(prompt))
    if len(words) > 2 * _EDGE_WORDS:
        words = words[:_EDGE_WORDS] + words[-_EDGE_WORDS:]
    features = {f"{left} {right}" for left, right in zip(["<", *words], [*words, ">"], strict=True)}
    for word in set(words):
        marked = f"<{word}>"
        features.add(marked)
        for length in _NGRAM_LENGTHS:
            features.update(
                marked[start : start + length] for start in range(len(marked) - length + 1)
            )
    return sorted({crc32(each.encode("utf-8", "replace")) % FEATURES for each in features})


def _normalize(text: str) -> str:
    text = text.lower()
    if text.isascii():
        return text
    parts = unicodedata.normalize("NFD", text)
    return "".join(char for char in parts if unicodedata.category(char) != "Mn")
