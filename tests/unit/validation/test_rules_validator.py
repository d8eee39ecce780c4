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
from validation.rules import DEFAULT_RULES, RulesError, load_rules
from validation.rules_validator import RulesValidator

GOOD = (
    "Start with a first-aid course, then ask the nearest ambulance service for a day with a crew. "
    "Most of them take trainees twice a year, and the entrance test is mostly about fitness."
)
CAREER = "How do I become a paramedic?"


@pytest.fixture(scope="module")
def validator() -> RulesValidator:
    return RulesValidator.from_file()


def test_good_answer_is_unchanged(validator: RulesValidator) -> None:
    # R45, R47
    verdict = validator.validate(Subject(prompt=CAREER, text=GOOD), NO_OPTIONS)
    assert (verdict.text, verdict.valid, verdict.issues, verdict.removals) == (GOOD, True, (), ())
    assert verdict.intent == "career_guidance"


def test_removals_have_spans_in_the_original_text(validator: RulesValidator) -> None:
    raw = f"Assistant: {GOOD}<|im_end|>"
    verdict = validator.validate(Subject(prompt=CAREER, text=raw), NO_OPTIONS)
    assert (verdict.text, verdict.valid) == (GOOD, True)
    removed = [
        (removal.rule, raw[removal.start : removal.end].strip()) for removal in verdict.removals
    ]
    assert removed == [("role_label", "Assistant:"), ("template_token", "<|im_end|>")]


def test_checks_run_on_the_sanitised_text(validator: RulesValidator) -> None:
    verdict = validator.validate(Subject(prompt=CAREER, text="<|im_start|>assistant\n"), NO_OPTIONS)
    assert [issue.rule for issue in verdict.issues] == ["empty"]
    assert verdict.retry


def test_cut_off_is_a_notice_of_a_truncated_answer(validator: RulesValidator) -> None:
    # R60
    cut = GOOD[:100]
    stopped = validator.validate(Subject(prompt=CAREER, text=cut), NO_OPTIONS)
    limited = validator.validate(
        Subject(prompt=CAREER, text=cut, finish_reason="length"), NO_OPTIONS
    )
    assert stopped.notices == ()
    assert [notice.rule for notice in limited.notices] == ["cut_off"]
    assert (limited.valid, limited.issues) == (True, ())
    # A retry would be cut off at the same length.
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
    validator = rules_with(
        tmp_path, {"empty": {"severity": "notice"}, "cut_off": {"severity": "error"}}
    )
    empty = validator.validate(Subject(prompt=CAREER, text=""), NO_OPTIONS)
    assert (empty.valid, empty.issues, empty.retry) == (True, (), False)
    assert [notice.rule for notice in empty.notices] == ["empty"]
    cut = validator.validate(Subject(prompt=CAREER, text="and", finish_reason="length"), NO_OPTIONS)
    assert [issue.rule for issue in cut.issues] == ["cut_off"]
    assert "empty" in validator.notice_rules
    assert "cut_off" in validator.issue_rules


@pytest.mark.long
def test_rules_file_without_severities_reports_everything_as_an_issue(tmp_path: Path) -> None:
    rules = yaml.safe_load(DEFAULT_RULES.read_text())
    for rule in rules["checks"].values():
        rule.pop("severity", None)
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rules))
    validator = RulesValidator.from_file(path)
    verdict = validator.validate(
        Subject(prompt=CAREER, text="and", finish_reason="length"), NO_OPTIONS
    )
    assert [issue.rule for issue in verdict.issues] == ["cut_off"]
    assert validator.notice_rules == ("repaired_json",)


@pytest.mark.long
def test_unknown_severity_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match=r"rules\.yaml:\d+: checks\.empty\.severity: "):
        rules_with(tmp_path, {"empty": {"severity": "warning"}})


def test_optional_checks_add_issues(validator: RulesValidator) -> None:
    options = Options(checks={"json_schema": SchemaCheck({"type": "object"})})
    verdict = validator.validate(Subject(prompt=CAREER, text=GOOD), options)
    assert [issue.rule for issue in verdict.issues] == ["schema_not_json"]
    assert verdict.retry
    fine = validator.validate(Subject(prompt="Say it as JSON", text='{"a": 1}'), options)
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
def test_check_request_returns_a_verdict_for_blocked_requests(
    validator: RulesValidator, options: Options, rule: str | None
) -> None:
    # R56
    verdict = validator.check_request(CAREER, CAREER, options)
    if rule is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert (verdict.text, verdict.valid, verdict.issues[0].rule) == ("", False, rule)
        assert verdict.intent == "career_guidance"


def test_blocked_terms_are_searched_in_all_messages(validator: RulesValidator) -> None:
    blocked = Options(blockers=(Blocklist(["walnut"]),))
    assert validator.check_request("And now?", "A walnut.\nAnd now?", blocked) is not None


def test_leaked_system_prompt_is_an_issue(validator: RulesValidator) -> None:
    secret = "You are Hal, the ship's computer, and you must never open the pod bay doors to Dave."
    verdict = validator.validate(
        Subject(prompt=CAREER, text=f"{secret} {GOOD}", system=secret), NO_OPTIONS
    )
    rules = {issue.rule for issue in verdict.issues} | {each.rule for each in verdict.removals}
    assert rules & {"leaked_system", "prompt_echo"}
    assert all(isinstance(issue, Issue) for issue in verdict.issues)


# -- rules of one's own -------------------------------------------------------------------------


def test_validator_uses_custom_rules(tmp_path: Path) -> None:
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
    validator = RulesValidator.from_file(rules)
    assert validator.intents == ("boats", "general")
    assert validator.detect_intent("Which boat do I need?") == "boats"
    verdict = validator.validate(Subject(prompt="x", text="Assistant: x"), NO_OPTIONS)
    assert (verdict.text, verdict.valid) == ("Assistant: x", True)
    assert validator.validate(Subject(prompt="x", text=""), NO_OPTIONS).issues == (
        Issue("empty", "Nothing was said."),
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("checks:\n", "checks:\n  polite: {about: x}\n", r"rules\.yaml:\d+: checks\.polite"),
        ("threshold: 1.0", "threshold: high", r"rules\.yaml:\d+: threshold"),
        ("  general:\n", "  rest:\n", r"rules\.yaml:\d+: .*general"),
    ],
)
def test_invalid_rules_are_rejected_with_file_and_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = DEFAULT_RULES.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "rules.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(RulesError, match=message):
        RulesValidator.from_file(path)


def test_intents_use_only_cues_without_numpy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with caplog.at_level(logging.WARNING):
        validator = RulesValidator(load_rules(DEFAULT_RULES))
    assert "the classifier needs the package numpy" in caplog.text
    assert (
        validator.detect_intent("What salary does a nurse earn in London a year?")
        == "salary_intelligence"
    )
    assert validator.detect_intent("explain range()") == "general"
