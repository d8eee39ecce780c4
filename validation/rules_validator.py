"""The built-in validator: detects the intent, sanitises the answer and runs the checks."""

from __future__ import annotations

import logging
from itertools import chain
from pathlib import Path
from typing import Self

from validation.checks import AnswerCase, Checks
from validation.classifier import IntentClassifier, MissingNumpy
from validation.intents import IntentDetector
from validation.issues import Issue, Subject
from validation.rules import DEFAULT_RULES, Rules, RulesError, add_location, load_rules
from validation.sanitizer import Sanitizer
from validation.verdict import AnswerCheck, Options, Repairer, Verdict

logger = logging.getLogger(__name__)

# The ids of issues that only options find.
_OPTION_RULES = (
    *("schema_not_json", "schema_mismatch", "pattern_mismatch", "not_a_choice", "bad_word"),
    *("language", "blocked_intent", "blocked_term"),
)
# The notice about a repaired answer.
_REPAIRED = Issue("repaired_json", "The JSON of the answer was repaired.")


class RulesValidator:
    """The built-in validator, defined by a rules file.

    Read-only after construction, so any number of threads may use it at the same time.

    Raises:
        ValueError: a rule that does not exist, or a pattern that is invalid.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._intents = IntentDetector(rules, _load_classifier() if rules.classifier > 0 else None)
        self._sanitizer = Sanitizer(rules.sanitizer)
        self._checks = Checks(rules)

    @classmethod
    def from_file(cls, path: Path = DEFAULT_RULES) -> Self:
        """Return a validator with the rules of a file. Raises RulesError, which names the file."""
        rules = load_rules(path)
        try:
            return cls(rules)
        except ValueError as error:
            raise RulesError(add_location(path, str(error))) from None

    @property
    def intents(self) -> tuple[str, ...]:
        """The names of all intents."""
        return tuple(self._rules.intents)

    @property
    def issue_rules(self) -> tuple[str, ...]:
        """The ids of all rules that can make an answer invalid, those of the options included."""
        return (*self._rules_of("error"), *_OPTION_RULES)

    @property
    def notice_rules(self) -> tuple[str, ...]:
        """The ids of all rules whose findings are only reported."""
        return (*self._rules_of("notice"), _REPAIRED.rule)

    def _rules_of(self, severity: str) -> tuple[str, ...]:
        checks = self._rules.checks
        return tuple(name for name, rule in checks.items() if rule.severity == severity)

    def detect_intent(self, prompt: str) -> str:
        """Return the intent of a prompt."""
        return self._intents.detect(prompt)

    def check_request(self, prompt: str, conversation: str, options: Options) -> Verdict | None:
        """Return the verdict on a blocked request, or None for other requests."""
        if not options.blockers:
            return None
        intent = self.detect_intent(prompt)
        for blocker in options.blockers:
            issue = blocker.find_block(conversation, intent)
            if issue is not None:
                return Verdict(text="", intent=intent, issues=(issue,))
        return None

    def validate(self, subject: Subject, options: Options) -> Verdict:
        """Return the verdict on a finished answer: sanitise it, then run the checks."""
        intent = self.detect_intent(subject.prompt)
        text, removals = self._sanitizer.clean(subject.text, subject.prompt, subject.system)
        case = AnswerCase(subject, text, self._rules.intents[intent], intent, removals)
        is_text = bool(text.strip()) or not subject.calls
        rules, findings = self._rules.checks, self._checks.find_issues(case) if is_text else ()
        issues = tuple(each for each in findings if rules[each.rule].severity == "error")
        notices = tuple(each for each in findings if rules[each.rule].severity == "notice")
        retry = any(rules[issue.rule].retry for issue in issues)
        checked_texts = subject.calls if subject.constrains_calls else ()
        checked_texts = checked_texts or ((text,) if is_text else ())
        for name, check in options.checks.items():
            every_issue = (issue for each in checked_texts for issue in check.find_issues(each))
            if check_issues := tuple(dict.fromkeys(every_issue)):
                # What `max_tokens` has cut is not made to look complete.
                if name == "json_schema" and checked_texts == (text,) and not case.is_truncated:
                    repaired = _repair(text, check, options.repairer)
                    if repaired is not None:
                        text, checked_texts, notices = repaired, (repaired,), (*notices, _REPAIRED)
                        continue
                issues += check_issues
                # Another answer would be truncated by the same limit.
                retry = retry or not case.is_truncated
        if options.call_check is not None:
            call_issues = [options.call_check.find_issues(call) for call in subject.calls]
            issues += tuple(chain.from_iterable(call_issues))
            retry = retry or (any(call_issues) and not case.is_truncated)
        return Verdict(
            text=text,
            intent=intent,
            issues=issues,
            notices=notices,
            removals=removals,
            retry=retry,
        )


def _repair(text: str, check: AnswerCheck, repairer: Repairer | None) -> str | None:
    """Return the answer as JSON that passes the check; None if it cannot be repaired so."""
    repaired = None if repairer is None else repairer.repair(text)
    if repaired is None or check.find_issues(repaired):
        return None
    return repaired


def _load_classifier() -> IntentClassifier | None:
    try:
        return IntentClassifier()
    except MissingNumpy:
        logger.warning(
            "intents are detected by cues alone, with more mistakes: the classifier needs the "
            "package numpy, which is not installed (`pip install numpy` adds it)"
        )
        return None
