"""A small encoder that classifies intents, trained on the project's prompts (tools/intents)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from validation.arrays import import_numpy
from validation.wordpiece import WordPiece

WEIGHTS = Path(__file__).with_name("intents.npz")
# The number of pieces that are read at the beginning and at the end of a prompt.
_EDGE_PIECES = 32


class MissingNumpy(Exception):
    """numpy is not installed; the classifier needs it."""


class IntentClassifier:
    """A transformer with two narrow layers over word pieces; a prompt takes numpy less than 1 ms.

    Weights are stored as 8-bit integers with one scale per row. The object is read-only after
    construction, so any number of threads may use it at the same time.

    Raises:
        MissingNumpy: numpy is not installed.
    """

    def __init__(self, path: Path = WEIGHTS) -> None:
        if find_spec("numpy") is None:
            raise MissingNumpy
        np = import_numpy()
        with np.load(path) as file:
            arrays: dict[str, Any] = dict(file)
        self._np = np
        vocabulary = _decode_lines(arrays.pop("vocabulary"))
        self._pieces = WordPiece(vocabulary)
        self._begin, self._end = vocabulary.index("[CLS]"), vocabulary.index("[SEP]")
        self._labels = _decode_lines(arrays.pop("labels"))
        self._heads = int(arrays.pop("heads"))
        # The embedding table stays quantised: a prompt needs about twenty of its 20,000 rows.
        self._table, self._table_scale = arrays.pop("table"), arrays.pop("table.scale")
        self._weights = {
            name: np.ascontiguousarray(array, np.float32)
            * arrays.get(f"{name}.scale", np.float32(1))
            for name, array in arrays.items()
            if not name.endswith(".scale")
        }
        self._layers = sum(name.endswith(".qkv") for name in self._weights)

    def log_odds(self, prompt: str) -> Mapping[str, float]:
        """Return ln(p/p₀) of each intent, p₀ being the likelihood of the last label, `general`."""
        ids = [self._begin, *self._pieces.encode(prompt), self._end]
        if len(ids) > 2 * _EDGE_PIECES:
            ids = ids[:_EDGE_PIECES] + ids[-_EDGE_PIECES:]
        logits = self._logits(ids)
        odds = (logits[:-1] - logits[-1]).tolist()
        return dict(zip(self._labels[:-1], odds, strict=True))

    def _logits(self, ids: list[int]) -> Any:
        np, weights = self._np, self._weights
        x = self._table[ids].astype(np.float32) * self._table_scale[ids]
        x = self._normalize(x + weights["position"][: len(ids)], "embedding")
        for layer in range(self._layers):
            x = self._normalize(x + self._attention(x, f"{layer}"), f"{layer}.attention")
            hidden = np.maximum(x @ weights[f"{layer}.up"] + weights[f"{layer}.up.bias"], 0)
            hidden = hidden @ weights[f"{layer}.down"] + weights[f"{layer}.down.bias"]
            x = self._normalize(x + hidden, f"{layer}.feedforward")
        return np.add.reduce(x, 0) / len(ids) @ weights["head"] + weights["head.bias"]

    def _attention(self, x: Any, layer: str) -> Any:
        np, weights = self._np, self._weights
        length, width = x.shape
        qkv = (x @ weights[f"{layer}.qkv"] + weights[f"{layer}.qkv.bias"]).reshape(
            length, 3, self._heads, width // self._heads
        )
        query, key, value = qkv.transpose(1, 2, 0, 3)
        scores = query @ key.transpose(0, 2, 1) * (width // self._heads) ** -0.5
        scores = np.exp(scores - np.maximum.reduce(scores, -1, keepdims=True))
        scores /= np.add.reduce(scores, -1, keepdims=True)
        mixed = (scores @ value).transpose(1, 0, 2).reshape(length, width)
        return mixed @ weights[f"{layer}.out"] + weights[f"{layer}.out.bias"]

    def _normalize(self, x: Any, name: str) -> Any:
        """Apply layer normalisation (Ba et al., 2016)."""
        np, width = self._np, x.shape[-1]
        # The overhead of `mean` and `max` is larger than the whole computation.
        x = x - np.add.reduce(x, -1, keepdims=True) / width
        deviation = np.sqrt(np.add.reduce(x * x, -1, keepdims=True) / width + 1e-5)
        return x / deviation * self._weights[f"{name}.gain"] + self._weights[f"{name}.bias"]


def _decode_lines(arrays: Any) -> list[str]:
    text: str = arrays.tobytes().decode()
    return text.split("\n")
