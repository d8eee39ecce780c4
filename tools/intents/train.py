"""Train the classifier of intents; see README.md in this folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from validation.classifier import FEATURES, WEIGHTS, feature_ids

DATA = Path(__file__).parents[2] / "tests" / "data" / "intents"
TRAINING_FILES = ("train_a.jsonl", "train_b.jsonl", "train_c.jsonl", "open.jsonl")
# The last one has no odds of its own.
LABELS = (
    "career_guidance",
    "interview_skills",
    "market_intelligence",
    "salary_intelligence",
    "general",
)
_STEPS = 150
_LEARNING_RATE = 0.05
_L2 = 1e-5
_LABEL_SMOOTHING = 0.05
# Makes the mean feature about as large as the bias, so that one learning rate suits both.
_IDF_SCALE = 0.2

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Model:
    """Weights of shape (features, labels) and a bias per label."""

    weights: Floats
    bias: Floats

    def logits(self, prompt: str) -> Floats:
        """Return the score of each label."""
        ids = feature_ids(prompt)
        logits: Floats = self.weights[ids].sum(0) / len(ids) ** 0.5 + self.bias
        return logits


class _Adam:
    """Kingma and Ba, 2015, with cosine decay to 0."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.values = np.zeros(shape)
        self._mean = np.zeros(shape)
        self._square = np.zeros(shape)

    def step(self, gradient: Floats, number: int) -> None:
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient**2
        mean, square = self._mean / (1 - 0.9**number), self._square / (1 - 0.99**number)
        rate = _LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * number / _STEPS))
        self.values -= rate * mean / (np.sqrt(square) + 1e-8)


def train(prompts: Sequence[str], labels: Integers) -> Model:
    """Fit a multinomial logistic regression on all prompts at once.

    A feature's value is its inverse document frequency over the square root of the prompt's number
    of features. The frequencies become part of the weights, so the product does not need them.
    """
    ids = [feature_ids(prompt) for prompt in prompts]
    counts = np.array([len(each) for each in ids])
    starts = np.cumsum(counts) - counts
    columns = np.concatenate(ids)
    rows = np.repeat(np.arange(len(ids)), counts)
    idf = _IDF_SCALE * np.log(1 + len(ids) / (1 + np.bincount(columns, minlength=FEATURES)))
    values = idf[columns] / np.sqrt(counts)[rows]
    targets = np.full((len(ids), len(LABELS)), _LABEL_SMOOTHING / len(LABELS))
    targets[np.arange(len(ids)), labels] += 1 - _LABEL_SMOOTHING
    weights, bias = _Adam((FEATURES, len(LABELS))), _Adam((len(LABELS),))
    for number in range(1, _STEPS + 1):
        logits = np.add.reduceat(weights.values[columns] * values[:, None], starts) + bias.values
        likelihoods = np.exp(logits - logits.max(1, keepdims=True))
        likelihoods /= likelihoods.sum(1, keepdims=True)
        errors = (likelihoods - targets) / len(ids)
        gradients = [
            np.bincount(columns, errors[rows, label] * values, FEATURES)
            for label in range(len(LABELS))
        ]
        weights.step(np.stack(gradients, 1) + _L2 * weights.values, number)
        bias.step(errors.sum(0), number)
    return Model(weights.values * idf[:, None], bias.values)


def save(model: Model, path: Path) -> None:
    """Write the file that IntentClassifier reads, with the weights rounded to 8 bits."""
    scale = np.abs(model.weights).max() / 127
    np.savez_compressed(
        path,
        labels=np.array(LABELS),
        weights=np.round(model.weights / scale).astype(np.int8),
        scale=np.float32(scale),
        bias=model.bias.astype(np.float32),
    )


def read(names: Sequence[str]) -> tuple[list[str], Integers]:
    """Return the prompts of some files and the indices of their labels."""
    lines = [line for name in names for line in (DATA / name).read_text("utf-8").splitlines()]
    rows = [json.loads(line) for line in lines]
    return [row["prompt"] for row in rows], np.array([LABELS.index(row["intent"]) for row in rows])


def main() -> None:
    """Train on all prompts except the holdout set; --without-open also leaves out open.jsonl."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--without-open", action="store_true", help="train without open.jsonl")
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    args = parser.parse_args()
    model = train(*read(TRAINING_FILES[:-1] if args.without_open else TRAINING_FILES))
    save(model, args.out)
    prompts, labels = read(["open.jsonl"])
    right = np.array([model.logits(prompt).argmax() for prompt in prompts]) == labels
    note = "" if args.without_open else " (part of the training data)"
    print(f"accuracy on open.jsonl, without cues: {right.mean():.1%}{note}")


if __name__ == "__main__":
    main()
