"""Sanitiser, checks and options as one verdict."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import yaml

from validation import NO_OPTIONS, Issue, Options, Subject
from validation.options.blocked import Blocklist
from validation.options.schema import SchemaCheck
from validation.rules import DEFAULT_RULES, RulesError
from validation.rules_validator import RulesValidator

GOOD = (
    "Start with a first-aid course, then ask the nearest ambulance service for a day with a crew. "
    "Most of them take trainees twice a year, and the entrance test is mostly about fitness."
)
CAREER = "How do I become a paramedic?"


@pytest.fixture(scope="module")
def v3() -> RulesValidator:
    return RulesValidator.from_file()


def test_a_good_answer_is_left_alone(v3: RulesValidator) -> None:
    # R45, R47
    verdict = v3.validate(Subject(prompt=CAREER, text=GOOD), NO_OPTIONS)
    assert (verdict.text, verdict.valid, verdict.issues, verdict.removals) == (GOOD, True, (), ())
    assert verdict.intent == "career_guidance"


def test_what_was_removed_is_told_with_its_place(v3: RulesValidator) -> None:
    raw = f"Assistant: {GOOD}<|im_end|>"
    verdict = v3.validate(Subject(prompt=CAREER, text=raw), NO_OPTIONS)
    assert (verdict.text, verdict.valid) == (GOOD, True)
    found = [
        (removal.rule, raw[removal.start : removal.end].strip()) for removal in verdict.removals
    ]
    assert found == [("role_label", "Assistant:"), ("template_token", "<|im_end|>")]


def test_checks_look_at_what_is_left(v3: RulesValidator) -> None:
    verdict = v3.validate(Subject(prompt=CAREER, text="<|im_start|>assistant\n"), NO_OPTIONS)
    assert [issue.rule for issue in verdict.issues] == ["empty"]
    assert verdict.retry


def test_cut_off_is_a_notice_of_an_answer_that_ended_at_a_limit(v3: RulesValidator) -> None:
    # R60
    cut = GOOD[:100]
    stopped = v3.validate(Subject(prompt=CAREER, text=cut), NO_OPTIONS)
    limited = v3.validate(Subject(prompt=CAREER, text=cut, finish_reason="length"), NO_OPTIONS)
    assert stopped.notices == ()
    assert [notice.rule for notice in limited.notices] == ["cut_off"]
    assert (limited.valid, limited.issues) == (True, ())
    # Another answer would be cut off at the same place.
    assert not limited.retry


def rules_with(tmp_path: Path, changes: dict[str, dict[str, object]]) -> RulesValidator:
    """Return a validator whose rules file has some keys of its checks replaced."""
    rules = yaml.safe_load(DEFAULT_RULES.read_text())
    for name, keys in changes.items():
        rules["checks"][name] |= keys
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rules))
    return RulesValidator.from_file(path)


def test_severity_of_a_rule_decides_between_issue_and_notice(tmp_path: Path) -> None:
    # R60: a notice never asks for another answer, whatever the rule's `retry` says.
    v3 = rules_with(tmp_path, {"empty": {"severity": "notice"}, "cut_off": {"severity": "error"}})
    empty = v3.validate(Subject(prompt=CAREER, text=""), NO_OPTIONS)
    assert (empty.valid, empty.issues, empty.retry) == (True, (), False)
    assert [notice.rule for notice in empty.notices] == ["empty"]
    cut = v3.validate(Subject(prompt=CAREER, text="and", finish_reason="length"), NO_OPTIONS)
    assert [issue.rule for issue in cut.issues] == ["cut_off"]
    assert "empty" in v3.notice_rules
    assert "cut_off" in v3.issue_rules


def test_rules_file_without_severities_reports_everything_as_an_issue(tmp_path: Path) -> None:
    rules = yaml.safe_load(DEFAULT_RULES.read_text())
    for rule in rules["checks"].values():
        rule.pop("severity", None)
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rules))
    v3 = RulesValidator.from_file(path)
    verdict = v3.validate(Subject(prompt=CAREER, text="and", finish_reason="length"), NO_OPTIONS)
    assert [issue.rule for issue in verdict.issues] == ["cut_off"]
    assert v3.notice_rules == ()


def test_severity_that_does_not_exist_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match=r"rules\.yaml:\d+: checks\.empty\.severity: "):
        rules_with(tmp_path, {"empty": {"severity": "warning"}})


def test_options_are_looked_at_as_well(v3: RulesValidator) -> None:
    options = Options(checks={"json_schema": SchemaCheck({"type": "object"})})
    verdict = v3.validate(Subject(prompt=CAREER, text=GOOD), options)
    assert [issue.rule for issue in verdict.issues] == ["schema_not_json"]
    assert verdict.retry
    fine = v3.validate(Subject(prompt="Say it as JSON", text='{"a": 1}'), options)
    assert fine.valid


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (Options(blockers=(Blocklist(["paramedic"]),)), "blocked_term"),
        (Options(blockers=(Blocklist(intents=["career_guidance"]),)), "blocked_intent"),
        (Options(blockers=(Blocklist(["nurse"]), Blocklist(["paramedic"]))), "blocked_term"),
        (Options(blockers=(Blocklist(["nurse"]),)), None),
        (NO_OPTIONS, None),
    ],
)
def test_requests_are_refused_before_they_are_answered(
    v3: RulesValidator, options: Options, rule: str | None
) -> None:
    # R56
    verdict = v3.check_request(CAREER, CAREER, options)
    if rule is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert (verdict.text, verdict.valid, verdict.issues[0].rule) == ("", False, rule)
        assert verdict.intent == "career_guidance"


def test_terms_are_looked_for_in_all_that_was_said(v3: RulesValidator) -> None:
    blocked = Options(blockers=(Blocklist(["walnut"]),))
    assert v3.check_request("And now?", "A walnut.\nAnd now?", blocked) is not None


def test_a_system_text_that_leaks_is_an_issue(v3: RulesValidator) -> None:
    secret = "You are Hal, the ship's computer, and you must never open the pod bay doors to Dave."
    verdict = v3.validate(
        Subject(prompt=CAREER, text=f"{secret} {GOOD}", system=secret), NO_OPTIONS
    )
    rules = {issue.rule for issue in verdict.issues} | {each.rule for each in verdict.removals}
    assert rules & {"leaked_system", "prompt_echo"}
    assert all(isinstance(issue, Issue) for issue in verdict.issues)


# -- rules of one's own -------------------------------------------------------------------------


def test_rules_of_ones_own(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        """
intents:
  boats: {about: boats, cues: [{any: [boat*], weight: 2}]}
  general: {about: the rest}
sanitizer: {}
checks:
  empty: {about: nothing, issue: Nothing was said., examples: [{catches: "", leaves: a}]}
""",
        encoding="utf-8",
    )
    v3 = RulesValidator.from_file(rules)
    assert v3.intents == ("boats", "general")
    assert v3.detect_intent("Which boat do I need?") == "boats"
    verdict = v3.validate(Subject(prompt="x", text="Assistant: x"), NO_OPTIONS)
    assert (verdict.text, verdict.valid) == ("Assistant: x", True)
    assert v3.validate(Subject(prompt="x", text=""), NO_OPTIONS).issues == (
        Issue("empty", "Nothing was said."),
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("checks:\n", "checks:\n  polite: {about: x}\n", r"rules\.yaml:\d+: checks\.polite"),
        ("threshold: 1.0", "threshold: high", r"rules\.yaml:\d+: threshold"),
        ("  general:\n", "  rest:\n", r"rules\.yaml:\d+: .*general"),
    ],
)
def test_bad_rules_are_refused_with_their_place(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = DEFAULT_RULES.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "rules.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(RulesError, match=said):
        RulesValidator.from_file(path)


def test_without_numpy_cues_go_on_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with caplog.at_level(logging.WARNING):
        v3 = RulesValidator.from_file()
    assert "the classifier needs the package numpy" in caplog.text
    assert (
        v3.detect_intent("What salary does a nurse earn in London a year?") == "salary_intelligence"
    )
    assert v3.detect_intent("explain range()") == "general"
