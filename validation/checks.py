"""The checks that run on an answer, and the sentences that report what they find."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from validation.findings import Issue, Removal, Subject
from validation.intents import excerpt
from validation.money import MoneyFinder
from validation.overlap import find_shared_passages
from validation.phrases import Phrases
from validation.repetition import find_longest_loop
from validation.rules import CheckRule, Intent, Rules
from validation.words import has_words, split_words

# A sentence goes on behind a letter, its accent or a figure, and behind these; whatever else there
# is may end it in one script or another, or stand behind its end.
_CONTINUING_CHARS = frozenset(",([{-\u2013\u2014/&+=$€£")

# Words that begin with the same letters, as many as these, are taken for forms of one.
_STEM_CHARS = 5


@dataclass(frozen=True, slots=False)
class AnswerCase:
    """One answer under examination, sanitised, with what is known of its question."""

    subject: Subject
    text: str
    intent: Intent
    intent_name: str
    removals: Sequence[Removal]

    @cached_property
    def words(self) -> list[str]:
        """The answer's words."""
        return split_words(self.text)

    @cached_property
    def asked(self) -> str:
        """The parts of the prompt that say what is wanted."""
        return excerpt(self.subject.prompt)

    @property
    def cut(self) -> bool:
        """Whether the engine ended the answer at a limit."""
        return self.subject.finish_reason == "length"


IssueFields = dict[str, object] | None
Check = Callable[["Checks", AnswerCase, CheckRule], IssueFields]


class Checks:
    """Runs the checks that the rules name, in their order.

    Each check returns None or what its sentence is filled in with. Linear in the answer's length;
    holds nothing between answers, so it may be used from any thread.

    Raises:
        ValueError: a check that does not exist, or a rule that lacks what it needs; the message
            begins with the place in the rules.
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
        """Return the findings of all checks, of either severity; for an empty answer only that."""
        found = []
        for name, rule in self._rules.items():
            filled = _CHECKS[name].look(self, case, rule)
            if filled is not None and not self._unless[name].search(case.asked):
                found.append(Issue(name, rule.issue.format(**filled)))
                if name == "empty":
                    break
        return tuple(found)

    def _empty(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        # A thumb or an empty list may be all that there is to say.
        shown = (char for char in set(case.text) if unicodedata.category(char)[0] not in "ZCP")
        said = case.words or case.text.strip()[:1] in {"[", "{"} or any(shown)
        return None if said else {}

    def _too_short(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        # Where a limit ended it the length says nothing.
        if case.cut or not self._judges("too_short", case.asked):
            return None
        least = case.intent.min_words
        return {"words": len(case.words), "least": least} if len(case.words) < least else None

    def _too_long(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        most = case.intent.max_words
        return {"words": len(case.words), "most": most} if len(case.words) > most else None

    def _repetition(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        loop = find_longest_loop(case.words)
        if loop is None:
            return None
        limits = rule.limits
        long = loop.period >= limits["long_period"]
        least = limits["long_times"] if long else limits["times"]
        if loop.times < least or loop.length < limits["words"]:
            return None
        return {"times": int(loop.times)}

    def _cut_off(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        last = case.text.rstrip()[-1:]
        if not case.cut or not last:
            return None
        return {} if last in _CONTINUING_CHARS or unicodedata.category(last)[0] in "LMN" else None

    def _off_intent(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        topics = self._topics.get(case.intent_name)
        if topics is None or not topics or len(case.words) < rule.limits["words"]:
            return None
        if topics.search(case.text) or not self._judges("off_intent", case.text):
            return None
        # Whoever asks about beehives is answered with bees and not with "skills".
        if _stems(split_words(case.asked)) & _stems(case.words):
            return None
        return {"intent": case.intent_name.replace("_", " ")}

    def _leaked_template(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        # At the ends a token is litter and is swept up; in between another turn has begun.
        raw = case.subject.text
        least = int(rule.limits["words"])
        for removal in case.removals:
            if removal.rule == "template_token" and has_words(raw[: removal.start], least):
                # Behind any later one there is still less.
                return {} if has_words(raw[removal.end :], least) else None
        return None

    def _leaked_prompt(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        return self._shared("leaked_prompt", case.subject.prompt, case, rule)

    def _leaked_system(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        return self._shared("leaked_system", case.subject.system, case, rule)

    def _shared(self, name: str, source: str, case: AnswerCase, rule: CheckRule) -> IssueFields:
        length = int(rule.limits["words"])
        passages = find_shared_passages(split_words(source), case.words, length)
        # A source has facts in it too, and they are there to be told.
        if not passages or not self._judges(name, " | ".join(passages)):
            return None
        return {"words": length}

    def _judges(self, name: str, text: str) -> bool:
        """Whether a check is for a text: it has one of the rule's words, or there are none."""
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
        # Who asks in pounds need not be told that it is pounds.
        return None if money.currencies(text) or money.currencies(case.asked) else {}

    def _salary_wrong_currency(self, case: AnswerCase, rule: CheckRule) -> IssueFields:
        if case.intent_name != "salary_intelligence":
            return None
        money = self._money
        expected, named = money.expected(case.asked), money.amounts(case.text)
        fitting = expected | money.currencies(case.asked)
        if not expected or not named or fitting & money.currencies(case.text):
            return None
        return {"expected": " or ".join(sorted(expected)), "named": ", ".join(named)}

    def _asks_amount(self, case: AnswerCase, name: str) -> bool:
        if case.intent_name != "salary_intelligence" or case.cut:
            return False
        return self._phrases[name].search(case.asked)


def _stems(spoken: Sequence[str]) -> set[str]:
    return {word[:_STEM_CHARS] for word in set(spoken) if len(word) >= _STEM_CHARS}


@dataclass(frozen=True, slots=True)
class _CheckSpec:
    """How a check is made, the limits its rule has to give, and what its sentence may name."""

    look: Check
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
    """Raise ValueError, beginning with the place in the file, for a rule that could not be used."""
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
    """Return the ids of all checks there are."""
    return ", ".join(_CHECKS)
