"""What an answer is looked at for, and the sentences about what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from validation.findings import Issue, Removal, Subject
from validation.money import Money
from validation.phrases import Phrases
from validation.repetition import longest_loop
from validation.rules import CheckRule, Intent, Rules
from validation.words import words

# A sentence may also end with what closes or decorates it, in any of the scripts that do so.
_SENTENCE_ENDS = frozenset(".!?…。\uff01\uff1f\"'\u201d\u2019»)]}`*_|>:;")


@dataclass(frozen=True, slots=False)
class Case:
    """One answer under examination, sanitised, with what is known of its question."""

    subject: Subject
    text: str
    intent: Intent
    intent_name: str
    removals: Sequence[Removal]

    @cached_property
    def words(self) -> list[str]:
        """The answer's words."""
        return words(self.text)

    @property
    def cut(self) -> bool:
        """Whether the engine ended the answer at a limit."""
        return self.subject.finish_reason == "length"


Found = dict[str, object] | None
Check = Callable[["Checks", Case, CheckRule], Found]


class Checks:
    """Runs the checks that the rules name, in their order.

    Each check returns None or what its sentence is filled in with. Linear in the answer's length;
    holds nothing between answers, so it may be used from any thread.

    Raises:
        ValueError: the rules name a check that does not exist.
    """

    def __init__(self, rules: Rules) -> None:
        unknown = set(rules.checks) - set(_CHECKS)
        if unknown:
            raise ValueError(f"checks: there is no {sorted(unknown)[0]}, there are: {known()}")
        self._rules = rules.checks
        self._money = Money(rules.currencies, rules.places)
        self._phrases = {name: Phrases(rule.words) for name, rule in rules.checks.items()}
        self._topics = {name: Phrases(intent.topics) for name, intent in rules.intents.items()}

    def issues(self, case: Case) -> tuple[Issue, ...]:
        """Return what is wrong with an answer; an empty one is only that."""
        found = []
        for name, rule in self._rules.items():
            filled = _CHECKS[name](self, case, rule)
            if filled is not None:
                found.append(Issue(name, rule.issue.format(**filled)))
                if name == "empty":
                    break
        return tuple(found)

    def _empty(self, case: Case, rule: CheckRule) -> Found:
        return None if case.words else {}

    def _too_short(self, case: Case, rule: CheckRule) -> Found:
        # Where a limit ended it the length says nothing, and who asks for a word gets a word.
        if case.cut or self._phrases["too_short"].search(case.subject.prompt):
            return None
        least = case.intent.min_words
        return {"words": len(case.words), "least": least} if len(case.words) < least else None

    def _too_long(self, case: Case, rule: CheckRule) -> Found:
        most = case.intent.max_words
        return {"words": len(case.words), "most": most} if len(case.words) > most else None

    def _repetition(self, case: Case, rule: CheckRule) -> Found:
        loop = longest_loop(case.text)
        if loop is None:
            return None
        limits = rule.limits
        long = loop.period >= limits["long_period"]
        least = limits["long_times"] if long else limits["times"]
        if loop.times < least or loop.length < limits["words"]:
            return None
        return {"times": int(loop.times)}

    def _cut_off(self, case: Case, rule: CheckRule) -> Found:
        text = case.text.rstrip()
        return {} if case.cut and text and text[-1] not in _SENTENCE_ENDS else None

    def _off_intent(self, case: Case, rule: CheckRule) -> Found:
        topics = self._topics.get(case.intent_name)
        if topics is None or not topics or len(case.words) < rule.limits["words"]:
            return None
        if topics.search(case.text):
            return None
        return {"intent": case.intent_name.replace("_", " ")}

    def _leaked_template(self, case: Case, rule: CheckRule) -> Found:
        # At the ends a token is litter and is swept up; in between another turn has begun.
        raw = case.subject.text
        least = int(rule.limits["words"])
        for removal in case.removals:
            if removal.rule == "template_token":
                before, after = raw[: removal.start], raw[removal.end :]
                if len(words(before)) >= least and len(words(after)) >= least:
                    return {}
                break
        return None

    def _leaked_prompt(self, case: Case, rule: CheckRule) -> Found:
        return self._shared(case.subject.prompt, case, int(rule.limits["words"]))

    def _leaked_system(self, case: Case, rule: CheckRule) -> Found:
        return self._shared(case.subject.system, case, int(rule.limits["words"]))

    def _shared(self, source: str, case: Case, length: int) -> Found:
        theirs = words(source)
        if len(theirs) < length:
            return None
        grams = {tuple(theirs[at : at + length]) for at in range(len(theirs) - length + 1)}
        ours = case.words
        for at in range(len(ours) - length + 1):
            if tuple(ours[at : at + length]) in grams:
                return {"words": length}
        return None

    def _salary_no_figure(self, case: Case, rule: CheckRule) -> Found:
        if not self._asks_amount(case, "salary_no_figure"):
            return None
        return None if self._money.has_figure(case.text) else {}

    def _salary_no_currency(self, case: Case, rule: CheckRule) -> Found:
        if not self._asks_amount(case, "salary_no_currency"):
            return None
        if not self._money.has_figure(case.text) or self._money.currencies(case.text):
            return None
        return {}

    def _salary_wrong_currency(self, case: Case, rule: CheckRule) -> Found:
        if case.intent_name != "salary_intelligence":
            return None
        expected = self._money.expected(case.subject.prompt)
        named = self._money.currencies(case.text)
        if not expected or not named or expected & named:
            return None
        return {"expected": " or ".join(sorted(expected)), "named": ", ".join(sorted(named))}

    def _asks_amount(self, case: Case, name: str) -> bool:
        if case.intent_name != "salary_intelligence" or case.cut:
            return False
        return self._phrases[name].search(case.subject.prompt)


_CHECKS: dict[str, Check] = {
    "empty": Checks._empty,
    "too_short": Checks._too_short,
    "too_long": Checks._too_long,
    "repetition": Checks._repetition,
    "cut_off": Checks._cut_off,
    "off_intent": Checks._off_intent,
    "leaked_template": Checks._leaked_template,
    "leaked_prompt": Checks._leaked_prompt,
    "leaked_system": Checks._leaked_system,
    "salary_no_figure": Checks._salary_no_figure,
    "salary_no_currency": Checks._salary_no_currency,
    "salary_wrong_currency": Checks._salary_wrong_currency,
}


def known() -> str:
    """Return the ids of all checks there are."""
    return ", ".join(_CHECKS)
