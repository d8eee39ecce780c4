"""The sanitiser: applies all rules to a text in passes until nothing changes."""

from __future__ import annotations

from collections.abc import Mapping

from validation.issues import Removal
from validation.rules import SanitizerRule
from validation.sanitizer.budget import Budget, BudgetExceeded
from validation.sanitizer.edits import Edit, apply_edits, compose_edits, select_edits, to_removals
from validation.sanitizer.markup import Markup
from validation.sanitizer.pattern import Pattern
from validation.sanitizer.pipes import Pipes
from validation.sanitizer.prefix_rules import PrefixRules
from validation.sanitizer.runs import BlankLines, Punctuation
from validation.sanitizer.suffix_rules import SuffixRules
from validation.sanitizer.text_view import TextView
from validation.sanitizer.tokens import TokenRules

RULE_IDS = (
    "template_token",
    "edge_token",
    "role_label",
    "prompt_echo",
    "context_line",
    "boilerplate",
    "html_markup",
    "stray_pipe",
    "punctuation_run",
    "blank_lines",
)

# A removal by one rule may expose text for another: a token before a label before an echo. Answers
# of models need less than half as many passes.
_MAX_PASSES = 16
# From this pass on, a removed token is replaced by a space, so that the text around it cannot form
# another token. Otherwise tokens nested within tokens could require any number of passes.
_SPACED_FROM_PASS = 8

# The patterns of these rules match context too; their group is the part to remove.
_RULES_WITH_GROUP = {"stray_pipe", "punctuation_run"}


class Sanitizer:
    """Removes text from answers according to the rules; missing rules are disabled."""

    def __init__(self, rules: Mapping[str, SanitizerRule]) -> None:
        """Compile the rules.

        Raises:
            ValueError: a rule has an unknown id, or a pattern that RE2 does not take.
        """
        for name in rules:
            if name not in RULE_IDS:
                raise ValueError(f"sanitizer.{name}: no such rule, there are {', '.join(RULE_IDS)}")
            _check_patterns(name, rules[name])
        rule_of = rules.get
        boilerplate = rule_of("boilerplate")
        self._tokens = TokenRules(rule_of("template_token"), rule_of("edge_token"))
        self._prefix_rules = PrefixRules(
            rule_of("role_label"), rule_of("prompt_echo"), rule_of("context_line"), boilerplate
        )
        self._suffix_rules = SuffixRules(boilerplate)
        self._markup = Markup(rule_of("html_markup"))
        self._pipes = Pipes(rule_of("stray_pipe"))
        self._punctuation = Punctuation(rule_of("punctuation_run"))
        self._blank_lines = BlankLines(rule_of("blank_lines"))

    def clean(
        self, text: str, prompt: str = "", system: str = ""
    ) -> tuple[str, tuple[Removal, ...]]:
        """Return the sanitised text, and the removals in order.

        Sanitising the result again changes nothing, because the last pass found nothing. A text
        that needs more passes or more work than any real answer is returned unchanged.
        """
        budget = Budget()
        view = TextView(text, budget)
        total_edits: list[Edit] = []
        try:
            for number in range(_MAX_PASSES):
                edits = self._edits(view, prompt, system, number >= _SPACED_FROM_PASS)
                if not edits:
                    return view.text, to_removals(text, total_edits)
                budget.spend(len(total_edits))
                total_edits = compose_edits(total_edits, edits) if total_edits else edits
                view = TextView(apply_edits(view.text, edits), budget)
        except BudgetExceeded:
            pass
        return text, ()

    def _edits(self, view: TextView, prompt: str, system: str, spaced: bool) -> list[Edit]:
        """Return the edits of one pass; of two overlapping edits, the one that starts first."""
        return select_edits(
            view.text,
            [
                *self._tokens.find_edits(view, spaced),
                *self._markup.find_edits(view, prompt),
                *self._prefix_rules.find_edits(view, prompt, system),
                *self._suffix_rules.find_edits(view),
                *self._pipes.find_edits(view),
                *self._punctuation.find_edits(view),
                *self._blank_lines.find_edits(view),
            ],
        )


def _check_patterns(name: str, rule: SanitizerRule) -> None:
    """Compile each pattern of a rule separately, so that errors name the rule and the pattern."""
    for source in rule.patterns:
        try:
            pattern = Pattern(source)
        except ValueError as error:
            raise ValueError(f"sanitizer.{name}: {error}") from None
        if pattern.matches(TextView("")):
            raise ValueError(f"sanitizer.{name}: {source!r} matches a text without characters")
        if name in _RULES_WITH_GROUP and pattern.groups != 1:
            raise ValueError(f"sanitizer.{name}: {source!r} needs one group, around what goes")
    if "" in rule.words:
        raise ValueError(f"sanitizer.{name}: a word without letters")
