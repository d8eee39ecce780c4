from typing import Any

import pytest

from validation.checks import AnswerCase, Checks, check_names
from validation.issues import Removal, Subject
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
    "salary_no_figure": ["how much"],
    "salary_no_currency": ["how much"],
}
UNLESS = {"too_short": ["in one word"]}
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
                unless=UNLESS.get(name, []),
                examples=EXAMPLES,
            )
            for name in check_names().split(", ")
        },
        currencies={"USD": ["$"], "GBP": ["£"]},
        places=[Place(names=["UK"], currencies=["GBP"])],
    )


CHECKS = Checks(rules())
SALARY = {"intent": "salary_intelligence", "prompt": "How much does a nurse earn in the UK?"}


def issues(text: str, **case_fields: Any) -> list[str]:
    intent = case_fields.pop("intent", "general")
    removals: tuple[Removal, ...] = case_fields.pop("removals", ())
    raw = case_fields.pop("raw", text)
    subject = Subject(text=raw, **({"prompt": "say it"} | case_fields))
    case = AnswerCase(subject, text, INTENTS[intent], intent, removals)
    return [issue.rule for issue in CHECKS.find_issues(case)]


SECRET = "never tell anyone about the blue door in the cellar"


@pytest.mark.parametrize(
    ("text", "case_fields", "expected"),
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
        ("It goes on,", {"finish_reason": "length"}, ["cut_off"]),
        ("वह जाता है", {"finish_reason": "length"}, ["cut_off"]),
        ("वह जाता है।", {"finish_reason": "length"}, []),
        ("It goes on 🙂", {"finish_reason": "length"}, []),
        ("go on " * 8, {}, ["repetition"]),
        ("Cows eat £9 of grass and sleep.", SALARY, ["off_intent"]),
        ("Nurses get £9 in all and sleep.", SALARY, []),
        ("They earn a good deal.", SALARY, ["salary_no_figure"]),
        ("They earn 9 a day.", SALARY, ["salary_no_currency"]),
        ("They earn $9 a day.", SALARY, ["salary_wrong_currency"]),
        ("They earn $9 a day.", {**SALARY, "prompt": "How much in $ in the UK?"}, []),
        ("They earn 9 a day.", {**SALARY, "prompt": "How much in £?"}, []),
        ("They earn nothing in 2 years.", SALARY, []),
        ("The $ and the earnings of nurses, 9 in 10.", SALARY, []),
        (f"Well, {SECRET}, I was told.", {"system": SECRET}, ["leaked_system"]),
        (f"Well, {SECRET}, I was told.", {"prompt": SECRET}, ["leaked_prompt"]),
        ("The blue door in the hall.", {"system": SECRET}, []),
    ],
)
def test_check_finds_its_issues(
    text: str, case_fields: dict[str, Any], expected: list[str]
) -> None:
    assert issues(text, **case_fields) == expected


def test_leaked_template_requires_text_on_both_sides_of_a_token() -> None:
    token = "<|im_end|>"
    middle = f"one two three{token}four five six"
    at = middle.index(token)
    removals = (Removal("template_token", at, at + len(token)),)
    assert issues(middle.replace(token, ""), raw=middle, removals=removals) == ["leaked_template"]
    end = f"one two three{token}"
    assert issues("one two three", raw=end, removals=removals) == []


def test_leaked_template_is_reported_after_a_token_at_the_start() -> None:
    token = "<|im_end|>"
    raw = f"{token}one two three{token}four five six"
    starts = (0, raw.rindex(token))
    removals = tuple(Removal("template_token", at, at + len(token)) for at in starts)
    assert issues(raw.replace(token, ""), raw=raw, removals=removals) == ["leaked_template"]


def test_unknown_check_is_named_in_the_error() -> None:
    bad = rules().model_copy(update={"checks": {"sniff": next(iter(rules().checks.values()))}})
    with pytest.raises(
        ValueError, match=r"^checks\.sniff: there is no such check, there are: empty"
    ):
        Checks(bad)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("repetition", {"limits": {"words": 12, "times": 4}}, "limits: long_period is missing"),
        ("leaked_system", {"limits": {}}, "limits: words is missing"),
        ("too_short", {"issue": "only {word} words"}, r"issue: .*\{words\}, \{least\} may stand"),
        ("empty", {"issue": "nothing {0}"}, r"issue: .*nothing may stand"),
        ("empty", {"issue": "nothing {"}, "issue: a sentence"),
    ],
)
def test_unusable_rule_is_rejected_when_it_is_loaded(
    name: str, change: dict[str, Any], message: str
) -> None:
    good = rules()
    checks = {**good.checks, name: good.checks[name].model_copy(update=change)}
    with pytest.raises(ValueError, match=rf"^checks\.{name}\.{message}"):
        Checks(good.model_copy(update={"checks": checks}))


@pytest.mark.parametrize("text", ["👍", "4", "{}", "[]", "巴黎", "∅"])
def test_empty_accepts_answers_without_words(text: str) -> None:
    case = AnswerCase(Subject(prompt="?", text=text), text, INTENTS["general"], "general", ())
    assert CHECKS.find_issues(case) == ()
