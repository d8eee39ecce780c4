"""Intent detection by cues and classifier (R48)."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation.classifier import WEIGHTS
from validation.intents import IntentDetector
from validation.rules import Cue, Intent, Rules
from validation.rules_validator import RulesValidator

DATA = Path(__file__).parents[2] / "data" / "intents"
INTENTS = (
    "career_guidance",
    "interview_skills",
    "market_intelligence",
    "salary_intelligence",
    "general",
)


def labelled(name: str) -> list[tuple[str, str]]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [(each["prompt"], each["intent"]) for each in map(json.loads, lines)]


@pytest.fixture(scope="module")
def validator() -> RulesValidator:
    return RulesValidator.from_file()


def test_labelled_set_is_large_enough() -> None:
    labels = Counter(intent for _, intent in [*labelled("open.jsonl"), *labelled("holdout.jsonl")])
    assert sum(labels.values()) >= 400
    assert min(labels[intent] for intent in INTENTS) >= 60


def test_training_and_test_prompts_are_disjoint() -> None:
    held = {prompt.casefold() for prompt, _ in labelled("holdout.jsonl")}
    for name in ("open.jsonl", "train_a.jsonl", "train_b.jsonl", "train_c.jsonl"):
        assert not held & {prompt.casefold() for prompt, _ in labelled(name)}


def test_accuracy_on_the_holdout_set(
    validator: RulesValidator, capsys: pytest.CaptureFixture[str]
) -> None:
    # R48; the figures are the issue's: 92 % of all, 85 % of each intent.
    confusion = Counter(
        (intent_expected, validator.detect_intent(prompt))
        for prompt, intent_expected in labelled("holdout.jsonl")
    )
    total = sum(confusion.values())
    right = sum(confusion[intent, intent] for intent in INTENTS)
    recalls = {
        intent_expected: confusion[intent_expected, intent_expected]
        / sum(confusion[intent_expected, intent_detected] for intent_detected in INTENTS)
        for intent_expected in INTENTS
    }
    lines = [f"\n\nintents of {total} prompts set aside: {right / total:.1%} detected correctly"]
    heads = "".join(intent.split("_")[0].rjust(10) for intent in INTENTS)
    lines.append(f"{'labelled':>20}{heads}    recall")
    for intent_expected in INTENTS:
        row = "".join(
            str(confusion[intent_expected, intent_detected]).rjust(10)
            for intent_detected in INTENTS
        )
        lines.append(f"{intent_expected:>20}{row}{recalls[intent_expected]:10.1%}")
    with capsys.disabled():
        # A worker of xdist has no stdout.
        sys.stderr.write("\n".join(lines) + "\n")
    assert right / total >= 0.92
    assert min(recalls.values()) >= 0.85


def test_prompt_of_the_specification_is_career_guidance(validator: RulesValidator) -> None:
    # R44, R48: test_input.json is S2's request.
    job = json.loads((DATA.parents[2] / "test_input.json").read_text(encoding="utf-8"))
    assert validator.detect_intent(job["input"]["prompt"]) == "career_guidance"


@pytest.mark.parametrize(
    "prompt",
    [
        "explain range()",
        "Explain range() in Python to a beginner.",
        "How do I earn your trust?",
        "resume the download",
        "Write a scene in which a novelist gives an interview to a ghost.",
        "",
        "   ",
        "\ud800",
        "職業",
    ],
)
def test_misleading_prompts_are_general(validator: RulesValidator, prompt: str) -> None:
    # "range()" must not count as a salary range.
    assert validator.detect_intent(prompt) == "general"


NEUTRAL = (
    *("This is a test", "help", "tell me more", "hello", "hi there", "thanks", "ok", "yes", "no"),
    *(
        "continue",
        "go on",
        "what?",
        "why?",
        "please explain",
        "can you repeat that",
        "test",
        "ping",
    ),
    *("testing 1 2 3", "good morning", "who are you?", "what can you do?", "are you there?"),
    *("say something", "tell me a joke", "again please", "more details", "next", "summarize this"),
    *("translate this", "what do you think?", "is that true?", "I see", "sounds good", "sorry"),
    *("Can you help me?", "I need help", "give me an example", "shorter please", "bye", "start"),
    *("how are you?", "Hello, world!", "one more time", "try again", "not sure", "what else?"),
    *(
        "What do you mean?",
        "answer my question",
        "this is wrong",
        "count to ten",
        "Explain it simply",
    ),
)


@pytest.mark.parametrize("prompt", NEUTRAL)
def test_neutral_prompt_is_general(validator: RulesValidator, prompt: str) -> None:
    # R86
    for text in (prompt, prompt.upper(), f"  {prompt}!"):
        assert validator.detect_intent(text) == "general"


@pytest.mark.parametrize(
    ("prompt", "intent"),
    [
        ("average nurse salary", "salary_intelligence"),
        ("How much do plumbers earn?", "salary_intelligence"),
        ("salary of a welder", "salary_intelligence"),
        ("mock interview questions", "interview_skills"),
        ("Interview tips for nurses", "interview_skills"),
        ("prepare me for a job interview", "interview_skills"),
        ("How do I become a nurse?", "career_guidance"),
        ("Should I quit my job?", "career_guidance"),
        ("become a data scientist", "career_guidance"),
        ("Which jobs are in demand?", "market_intelligence"),
        ("job market for welders", "market_intelligence"),
    ],
)
def test_short_prompt_with_evidence_has_its_intent(
    validator: RulesValidator, prompt: str, intent: str
) -> None:
    assert validator.detect_intent(prompt) == intent


def test_classifier_weights_are_small() -> None:
    assert WEIGHTS.stat().st_size < 5_000_000


@given(st.text(max_size=3000))
def test_any_text_has_an_intent(prompt: str) -> None:
    assert _VALIDATOR.detect_intent(prompt) in INTENTS


_VALIDATOR = RulesValidator.from_file()


# -- cues ---------------------------------------------------------------------------------------


def create_detector(
    *cues: Cue, general: tuple[Cue, ...] = (), threshold: float = 1.0
) -> IntentDetector:
    return IntentDetector(
        Rules(
            intents={
                "pay": Intent(about="-", cues=list(cues)),
                "general": Intent(about="-", cues=list(general)),
            },
            threshold=threshold,
            sanitizer={},
            checks={},
        )
    )


def test_one_cue_is_not_an_intent() -> None:
    intents = create_detector(Cue(any=["salar*"], weight=0.8), Cue(any=["nurse"], weight=0.5))
    assert intents.detect("salary") == "general"
    assert intents.detect("Salaries of a NURSE") == "pay"


def test_repeated_cue_counts_once() -> None:
    intents = create_detector(Cue(any=["pay", "paid"], weight=0.8))
    assert intents.detect("pay, pay and paid") == "general"


@pytest.mark.parametrize(
    ("phrase", "matching", "not_matching"),
    [
        ("raise", "a Raise?", "raised"),
        ("salar*", "salaries", "my-salary"),
        ("how much", "How\n much is it", "how so much"),
        ("cost of liv*", "the cost of living.", "cost of the living"),
        ("c++", "is C++ hard", "is C hard"),
        ("don't", "I don\u2019t know", "I do not know"),
    ],
)
def test_phrases_match_whole_words(phrase: str, matching: str, not_matching: str) -> None:
    intents = create_detector(Cue(any=[phrase], weight=2))
    assert intents.detect(matching) == "pay"
    assert intents.detect(not_matching) == "general"


def test_cue_requires_a_near_phrase() -> None:
    intents = create_detector(Cue(any=["range"], near=["salary", "pay"], weight=2))
    assert intents.detect("explain range()") == "general"
    assert intents.detect("what range does it pay") == "pay"


def test_general_cue_lowers_the_other_scores() -> None:
    intents = create_detector(
        Cue(any=["raise"], weight=2), general=(Cue(any=["exception"], weight=1.5),)
    )
    assert intents.detect("how do I get a raise") == "pay"
    assert intents.detect("raise an exception") == "general"


def test_negative_weight_lowers_a_score() -> None:
    intents = create_detector(Cue(any=["raise"], weight=2), Cue(any=["chickens"], weight=-1.5))
    assert intents.detect("raise chickens") == "general"


class Odds:
    def log_odds(self, prompt: str) -> dict[str, float]:
        return {"pay": 1.0 if "fee" in prompt else -1.0, "unheard_of": 9.0}


def test_scores_add_cues_and_classifier() -> None:
    rules = Rules(
        intents={
            "pay": Intent(about="-", cues=[Cue(any=["tip"], weight=0.7)]),
            "mine": Intent(about="-", cues=[Cue(any=["gold"], weight=0.9)]),
            "general": Intent(about="-"),
        },
        classifier=0.5,
        sanitizer={},
        checks={},
    )
    intents = IntentDetector(rules, Odds())
    assert intents.scores("a fee, a tip and gold") == pytest.approx({"pay": 0.2, "mine": -0.1})
    assert intents.detect("a tip, a fee") == "pay"
    assert intents.detect("a tip") == "general"
    # The classifier does not know a custom intent, so only the cues of the intent count.
    assert intents.detect("gold") == "general"


def test_detector_reads_both_ends_of_a_long_prompt() -> None:
    intents = create_detector(Cue(any=["salary"], weight=2))
    assert intents.detect("salary " + "x " * 5000) == "pay"
    assert intents.detect("x " * 5000 + "salary") == "pay"
    assert intents.detect("x " * 5000 + "salary" + " x" * 5000) == "general"
