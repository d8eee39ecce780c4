"""The trainer of the intents' classifier, on a few prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools.intents.train import DATA, LABELS, TRAINING_FILES, Model, save, train
from validation.classifier import IntentClassifier

PROMPTS = [
    "Which degree should I choose?",
    "What will they ask me in the interview?",
    "Which employers are hiring welders?",
    "How much does a welder earn?",
    "Why is the sky blue?",
]


@pytest.fixture(scope="module")
def model() -> Model:
    return train(PROMPTS, np.arange(len(LABELS)))


def test_train_learns_its_prompts(model: Model) -> None:
    assert [int(model.logits(prompt).argmax()) for prompt in PROMPTS] == [0, 1, 2, 3, 4]


def test_saved_model_has_almost_the_odds_of_the_trained_one(model: Model, tmp_path: Path) -> None:
    save(model, tmp_path / "intents.npz")
    classifier = IntentClassifier(tmp_path / "intents.npz")
    for prompt in [*PROMPTS, "a welder in the sky"]:
        logits = model.logits(prompt)
        trained_odds = dict(zip(LABELS[:-1], (logits[:-1] - logits[-1]).tolist(), strict=True))
        assert classifier.log_odds(prompt) == pytest.approx(trained_odds, abs=0.1)


def test_training_files_do_not_include_the_holdout_set() -> None:
    assert "holdout.jsonl" not in TRAINING_FILES
    assert all((DATA / name).is_file() for name in TRAINING_FILES)
