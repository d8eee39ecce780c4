"""Runs all examples in rules.yaml, and checks good answers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from validation.checks import AnswerCase, Checks, check_names
from validation.issues import Subject
from validation.rules import CheckRule, Example, SanitizerRule, load_rules
from validation.sanitizer import Sanitizer
from validation.sanitizer.sanitizer import RULE_IDS

GOOD = Path(__file__).parents[2] / "data" / "checks" / "good.yaml"
RULES = load_rules()
SANITIZER = Sanitizer(RULES.sanitizer)
CHECKS = Checks(RULES)


def examples(rules: Mapping[str, SanitizerRule] | Mapping[str, CheckRule]) -> list[Any]:
    return [
        pytest.param(name, example, id=f"{name}-{number}")
        for name, rule in rules.items()
        for number, example in enumerate(rule.examples, 1)
    ]


def good_answers() -> list[Example]:
    answers: dict[str, list[dict[str, Any]]] = yaml.safe_load(GOOD.read_text(encoding="utf-8"))
    return [
        Example(intent=intent, leaves=answer.pop("text"), catches="", **answer)
        for intent, each in answers.items()
        for answer in each
    ]


def issues(example: Example, text: str) -> list[str]:
    subject = Subject(
        prompt=example.prompt,
        text=text,
        finish_reason=example.finish_reason,
        system=example.system,
    )
    cleaned, removals = SANITIZER.clean(text, example.prompt, example.system)
    intent = RULES.intents[example.intent]
    if example.max_words is not None:
        intent = intent.model_copy(update={"max_words": example.max_words})
    case = AnswerCase(subject, cleaned, intent, example.intent, removals)
    return [issue.rule for issue in CHECKS.find_issues(case)]


def test_rules_file_lists_all_rules_in_order() -> None:
    assert set(RULES.sanitizer) == set(RULE_IDS)
    assert ", ".join(RULES.checks) == check_names()
    assert set(RULES.intents) == {
        "career_guidance",
        "interview_skills",
        "market_intelligence",
        "salary_intelligence",
        "general",
    }
    assert all(len(rule.examples) >= 2 for rule in RULES.checks.values())


@pytest.mark.parametrize(("name", "example"), examples(RULES.sanitizer))
def test_example_of_the_sanitizer(name: str, example: Example) -> None:
    cleaned, removals = SANITIZER.clean(example.catches, example.prompt, example.system)
    assert {removal.rule for removal in removals} == {name}
    assert cleaned != example.catches
    left = SANITIZER.clean(example.leaves, example.prompt, example.system)
    assert left == (example.leaves, ())


@pytest.mark.parametrize(("name", "example"), examples(RULES.checks))
def test_example_of_a_check(name: str, example: Example) -> None:
    assert issues(example, example.catches) == [name]
    assert issues(example, example.leaves) == []


def test_good_answer_is_valid(subtests: pytest.Subtests) -> None:
    for example in good_answers():
        with subtests.test(example.leaves):
            assert issues(example, example.leaves) == []


def test_every_place_has_known_currencies() -> None:
    for place in RULES.places:
        assert set(place.currencies) <= set(RULES.currencies), place.names


def test_place_names_are_unique() -> None:
    names = [name for place in RULES.places for name in place.names]
    assert len(names) == len(set(names))
