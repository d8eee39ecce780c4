"""The trained classifier: its odds are finite, repeatable and equal in all threads."""

from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation.classifier import IntentClassifier, MissingNumpy

INTENTS = {"career_guidance", "interview_skills", "market_intelligence", "salary_intelligence"}
CLASSIFIER = IntentClassifier()


@given(st.text(max_size=2000))
def test_any_text_has_finite_odds(prompt: str) -> None:
    odds = CLASSIFIER.log_odds(prompt)
    assert set(odds) == INTENTS
    assert all(math.isfinite(each) for each in odds.values())
    assert CLASSIFIER.log_odds(prompt) == odds


def test_text_without_words_favours_no_intent() -> None:
    for prompt in ("", " \n\t", "\ud800"):
        assert max(CLASSIFIER.log_odds(prompt).values()) < 0


def test_classifier_reads_only_both_ends_of_a_long_prompt() -> None:
    around = "How much does a nurse earn in London? " * 20
    assert CLASSIFIER.log_odds(around + "x " * 10 + around) == CLASSIFIER.log_odds(around * 2)


def test_threads_share_one_classifier() -> None:
    prompts = [f"How much does a nurse earn after {years} years?" for years in range(40)]
    expected = [CLASSIFIER.log_odds(prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(IntentClassifier().log_odds, prompts)) == expected


def test_classifier_raises_missing_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingNumpy):
        IntentClassifier()


def test_numpy_is_not_loaded_before_it_is_needed() -> None:
    program = "import sys, validation.rules_validator; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
