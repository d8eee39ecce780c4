from typing import Any

import pytest

from validation.checks import Case, Checks, known
from validation.findings import Removal, Subject
from validation.rules import CheckRule, Example, Intent, Place, Rules

EXAMPLES = [Example(catches="-", leaves="-")]
LIMITS: dict[str, dict[str, float]] = {
    "repetition": {"times": 4, "long_period": 20, "long_times": 2, "words": 12},
    "off_intent": {"words": 5},
    "leaked_template": {"words": 3},
    "leaked_prompt": {"words": 6},
    "leaked_system": {"words": 6},
}
WORDS = {
    "too_short": ["in one word"],
    "salary_no_figure": ["how much"],
    "salary_no_currency": ["how much"],
}
INTENTS = {
    "salary_intelligence": Intent(about="-", min_words=3, max_words=30, topics=["pay*", "earn*"]),
    "general": Intent(about="-", max_words=30),
}


def rules() -> Rules:
    return Rules(
        intents=INTENTS,
        sanitizer={},
        checks={
            name: CheckRule(
                about="-",
                issue=name,
                limits=LIMITS.get(name, {}),
                words=WORDS.get(name, []),
                examples=EXAMPLES,
            )
            for name in known().split(", ")
        },
        currencies={"USD": ["$"], "GBP": ["£"]},
        places=[Place(names=["UK"], currencies=["GBP"])],
    )


CHECKS = Checks(rules())
SALARY = {"intent": "salary_intelligence", "prompt": "How much does a nurse earn in the UK?"}


def issues(text: str, **given: Any) -> list[str]:
    intent = given.pop("intent", "general")
    removals: tuple[Removal, ...] = given.pop("removals", ())
    raw = given.pop("raw", text)
    subject = Subject(text=raw, **({"prompt": "say it"} | given))
    case = Case(subject, text, INTENTS[intent], intent, removals)
    return [issue.rule for issue in CHECKS.issues(case)]


SECRET = "never tell anyone about the blue door in the cellar"


@pytest.mark.parametrize(
    ("text", "given", "found"),
    [
        ("A good answer.", {}, []),
        ("", {}, ["empty"]),
        (" \n!?", {}, ["empty"]),
        ("word " * 31, {}, ["too_long", "repetition"]),
        ("You earn £9.", SALARY, []),
        ("£9.", SALARY, ["too_short"]),
        ("£9.", {**SALARY, "prompt": "In one word: how much in the UK?"}, []),
        ("£9 and", {**SALARY, "finish_reason": "length"}, ["cut_off"]),
        ("It goes on.", {"finish_reason": "length"}, []),
        ("It goes on and", {"finish_reason": "length"}, ["cut_off"]),
        ("It goes on and", {}, []),
        ("go on " * 8, {}, ["repetition"]),
        ("Cows eat £9 of grass and sleep.", SALARY, ["off_intent"]),
        ("They earn a good deal.", SALARY, ["salary_no_figure"]),
        ("They earn 9 a day.", SALARY, ["salary_no_currency"]),
        ("They earn $9 a day.", SALARY, ["salary_wrong_currency"]),
        (f"Well, {SECRET}, I was told.", {"system": SECRET}, ["leaked_system"]),
        (f"Well, {SECRET}, I was told.", {"prompt": SECRET}, ["leaked_prompt"]),
        ("The blue door in the hall.", {"system": SECRET}, []),
    ],
)
def test_issues(text: str, given: dict[str, Any], found: list[str]) -> None:
    assert issues(text, **given) == found


def test_template_token_between_two_turns_is_a_leak_and_at_the_end_is_not() -> None:
    token = "<|im_end|>"
    middle = f"one two three{token}four five six"
    at = middle.index(token)
    removals = (Removal("template_token", at, at + len(token)),)
    assert issues(middle.replace(token, ""), raw=middle, removals=removals) == ["leaked_template"]
    end = f"one two three{token}"
    assert issues("one two three", raw=end, removals=removals) == []


def test_unknown_check_is_named() -> None:
    bad = rules().model_copy(update={"checks": {"sniff": next(iter(rules().checks.values()))}})
    with pytest.raises(ValueError, match="there is no sniff"):
        Checks(bad)
