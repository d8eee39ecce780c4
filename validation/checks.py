"""The checks of an answer, and the sentences that report their findings."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from validation.intents import excerpt
from validation.issues import Issue, Removal, Subject
from validation.money import MoneyFinder
from validation.overlap import find_shared_passages
from validation.phrases import Phrases
from validation.repetition import find_longest_loop
from validation.rules import CheckRule, Intent, Rules
from validation.words import has_words, split_words

# A text that ends with a letter, an accent, a digit or one of these characters ends within a
# sentence. Any other character may end a sentence, or follow its end, in some script.
_CONTINUING_CHARS = frozenset(",([{-\u2013\u2014/&+=$€£")

# Words with the same first letters, this many, count as forms of one word.
_STEM_CHARS = 5


@dataclass(frozen=True, slots=False)
class AnswerCase:
    """A sanitised answer with its prompt and intent."""

    subject: Subject
    text: str
    intent: Intent
    intent_name: str
    removals: Sequence[Removal]

    @cached_property
    def words(self) -> list[str]:
        """The words of the answer."""
        return split_words(self.text)

    @cached_property
    def prompt_excerpt(self) -> str:
        """The beginning and the end of the prompt, which state the request."""
        return excerpt(self.subject.prompt)

    @property
    def is_truncated(self) -> bool:
        """Whether generation ended at a limit."""
        return self.subject.finish_reason == "length"


IssueFields = dict[str, object] | None
Check = Callable[["Checks", AnswerCase, CheckRule], IssueFields]


class Checks:
    """Runs the checks that the rules name, in their order.

    Each check returns None, or for an issue the values for the fields of its sentence. Linear in
    the answer's length. There is no state between answers, so any thread may use it.

    Raises:
        ValueError: a check that does not exist, or a rule without a required limit; the message
            starts with the path in the rules.
    """

    def __init__(self, rules: Rules) -> None:
        for name, rule in rules.checks.items():
            _verify_rule(name, rule)
        self._rules = rules.checks
        self._money = MoneyFinder(rules.currencies, rules.places)
        self._phrases = {name: Phrases(rule.words) for name, rule in rules.checks.items()}
        self._unless = {name: Phrases(rule.unless) for name, rule in rules.checks.items()}
        self._topics = {name: Phrases(intent.topics) for name, intent in rules.intents.items()}

    def find_issues(self, case: AnswerCase) -> tuple[Issue, ...]:
        """Return the issues and notices of all checks; for an empty answer only that issue."""
        issues = []
        for name, rule in self._rules.items():
            values = _CHECKS[name].run(self, case, rule)
            if values is not None and not self._unless[name].search(case.prompt_excerpt):
                issues.append(Issue(name, rule.issue.format(**values)))
                if name == "empty":
                    break
        return tuple(issues)

    def _empty(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        # An emoji or an empty list can be a complete answer.
        visible = (char for char in set(case.text) if unicodedata.category(char)[0] not in "ZCP")
        has_content = case.words or case.text.strip()[:1] in {"[", "{"} or any(visible)
        return None if has_content else {}

    def _too_short(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        # A truncated answer may be short because of the limit.
        if case.is_truncated or not self._applies_to("too_short", case.prompt_excerpt):
            return None
        min_words = case.intent.min_words
        count = len(case.words)
        return {"words": count, "least": min_words} if count < min_words else None

    def _too_long(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        max_words = case.intent.max_words
        count = len(case.words)
        return {"words": count, "most": max_words} if count > max_words else None

    def _repetition(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        loop = find_longest_loop(case.words)
        if loop is None:
            return None
        limits = rule.limits
        is_long = loop.period >= limits["long_period"]
        min_times = limits["long_times"] if is_long else limits["times"]
        if loop.times < min_times or loop.length < limits["words"]:
            return None
        return {"times": int(loop.times)}

    def _cut_off(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        last = case.text.rstrip()[-1:]
        if not case.is_truncated or not last:
            return None
        return {} if last in _CONTINUING_CHARS or unicodedata.category(last)[0] in "LMN" else None

    def _off_intent(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        topics = self._topics.get(case.intent_name)
        if topics is None or not topics or len(case.words) < rule.limits["words"]:
            return None
        if topics.search(case.text) or not self._applies_to("off_intent", case.text):
            return None
        # An answer that shares words with the prompt is on topic: a question about beehives is
        # answered with "bees", not with "skills".
        if _stems(split_words(case.prompt_excerpt)) & _stems(case.words):
            return None
        return {"intent": case.intent_name.replace("_", " ")}

    def _leaked_template(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        # A removed token at either end is harmless. In the middle, another turn has started.
        raw = case.subject.text
        min_words = int(rule.limits["words"])
        for removal in case.removals:
            if removal.rule == "template_token" and has_words(raw[: removal.start], min_words):
                # Less text follows each later token.
                return {} if has_words(raw[removal.end :], min_words) else None
        return None

    def _leaked_prompt(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        return self._find_leak("leaked_prompt", case.subject.prompt, case, rule)

    def _leaked_system(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        return self._find_leak("leaked_system", case.subject.system, case, rule)

    def _find_leak(self, name: str, source: str, case: AnswerCase, rule: CheckRule) -> IssueFields:
        length = int(rule.limits["words"])
        passages = find_shared_passages(split_words(source), case.words, length)
        # An answer may repeat facts of the prompt; the rule's words identify instructions.
        if not passages or not self._applies_to(name, " | ".join(passages)):
            return None
        return {"words": length}

    def _applies_to(self, name: str, text: str) -> bool:
        """Return whether the text has a phrase of the check, or the check needs no phrase."""
        phrases = self._phrases[name]
        return not phrases or phrases.search(text)

    def _salary_no_figure(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        if not self._asks_amount(case, "salary_no_figure"):
            return None
        money, text = self._money, case.text
        return None if money.has_number(text) or money.has_amount_in_words(text) else {}

    def _salary_no_currency(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        if not self._asks_amount(case, "salary_no_currency"):
            return None
        money, text = self._money, case.text
        if not money.has_number(text) or money.has_amount_in_words(text):
            return None
        # If the prompt names a currency, the answer need not repeat it.
        return None if money.currencies(text) or money.currencies(case.prompt_excerpt) else {}

    def _salary_wrong_currency(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        if case.intent_name != "salary_intelligence":
            return None
        money = self._money
        expected, named = money.expected(case.prompt_excerpt), money.amounts(case.text)
        fitting = expected | money.currencies(case.prompt_excerpt)
        if not expected or not named or fitting & money.currencies(case.text):
            return None
        return {"expected": " or ".join(sorted(expected)), "named": ", ".join(named)}

    def _asks_amount(self, case: AnswerCase, name: str) -> bool:
        if case.intent_name != "salary_intelligence" or case.is_truncated:
            return False
        return self._phrases[name].search(case.prompt_excerpt)


def _stems(words: Sequence[str]) -> set[str]:
    return {word[:_STEM_CHARS] for word in set(words) if len(word) >= _STEM_CHARS}


@dataclass(frozen=True, slots=True)
class _CheckSpec:
    """A check's method, the limits that its rule must have, and the fields of its sentence."""

    run: Check
    limits: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


_CHECKS = {
    "empty": _CheckSpec(Checks._empty),
    "too_short": _CheckSpec(Checks._too_short, fields=("words", "least")),
    "too_long": _CheckSpec(Checks._too_long, fields=("words", "most")),
    "repetition": _CheckSpec(
        Checks._repetition, ("words", "times", "long_period", "long_times"), ("times",)
    ),
    "cut_off": _CheckSpec(Checks._cut_off),
    "off_intent": _CheckSpec(Checks._off_intent, ("words",), ("intent",)),
    "leaked_template": _CheckSpec(Checks._leaked_template, ("words",)),
    "leaked_prompt": _CheckSpec(Checks._leaked_prompt, ("words",), ("words",)),
    "leaked_system": _CheckSpec(Checks._leaked_system, ("words",), ("words",)),
    "salary_no_figure": _CheckSpec(Checks._salary_no_figure),
    "salary_no_currency": _CheckSpec(Checks._salary_no_currency),
    "salary_wrong_currency": _CheckSpec(
        Checks._salary_wrong_currency, fields=("expected", "named")
    ),
}


def _verify_rule(name: str, rule: CheckRule) -> None:
    """Raise ValueError, starting with the path in the file, if a rule is unusable."""
    kind = _CHECKS.get(name)
    if kind is None:
        raise ValueError(f"checks.{name}: there is no such check, there are: {check_names()}")
    for limit in kind.limits:
        if limit not in rule.limits:
            raise ValueError(f"checks.{name}.limits: {limit} is missing")
    try:
        rule.issue.format(**dict.fromkeys(kind.fields, 0))
    except (KeyError, IndexError, ValueError, AttributeError, TypeError):
        allowed = ", ".join(f"{{{field}}}" for field in kind.fields) or "nothing"
        raise ValueError(
            f"checks.{name}.issue: a sentence in which {allowed} may stand, got {rule.issue!r:.60}"
        ) from None


def check_names() -> str:
    """Return the ids of all checks, for messages."""
    return ", ".join(_CHECKS)
