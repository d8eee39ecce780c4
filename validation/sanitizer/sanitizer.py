"""The sanitiser: every rule on one text, again and again until none finds anything."""

from __future__ import annotations

from collections.abc import Mapping

from validation.findings import Removal
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

# What one rule takes out may leave something for another: a token before a label before an echo.
# No answer of a model needs half as many passes.
_MAX_PASSES = 16
# Tokens within tokens within tokens: from here on their neighbours are kept apart by a space, so
# that they can make no further token. Every pass costs time, and the depth is up to the text.
_SPACED_FROM_PASS = 8

# Their patterns say with a group what goes; around it they say what has to be there.
_RULES_WITH_GROUP = {"stray_pipe", "punctuation_run"}


class Sanitizer:
    """Takes out of answers what the given rules are for; a rule that is not given is off."""

    def __init__(self, rules: Mapping[str, SanitizerRule]) -> None:
        """Compile the rules.

        Raises:
            ValueError: a rule has an unknown id, or a pattern that RE2 does not take.
        """
        for name in rules:
            if name not in RULE_IDS:
                raise ValueError(f"sanitizer.{name}: no such rule, there are {', '.join(RULE_IDS)}")
            _check_patterns(name, rules[name])
        given = rules.get
        boilerplate = given("boilerplate")
        self._tokens = TokenRules(given("template_token"), given("edge_token"))
        self._opening = PrefixRules(
            given("role_label"), given("prompt_echo"), given("context_line"), boilerplate
        )
        self._closing = SuffixRules(boilerplate)
        self._markup = Markup(given("html_markup"))
        self._pipes = Pipes(given("stray_pipe"))
        self._punctuation = Punctuation(given("punctuation_run"))
        self._blank_lines = BlankLines(given("blank_lines"))

    def clean(
        self, text: str, prompt: str = "", system: str = ""
    ) -> tuple[str, tuple[Removal, ...]]:
        """Return the text without what the rules take out, and what that was, in order.

        What comes out is never changed any further: every pass is a function of its text, and the
        last one found nothing. A text that is too much for it, because it nests deeper than passes
        reach or has more to look at than any answer, is left as it was.
        """
        budget = Budget()
        page = TextView(text, budget)
        done: list[Edit] = []
        try:
            for number in range(_MAX_PASSES):
                edits = self._edits(page, prompt, system, number >= _SPACED_FROM_PASS)
                if not edits:
                    return page.text, to_removals(text, done)
                budget.spend(len(done))
                done = compose_edits(done, edits) if done else edits
                page = TextView(apply_edits(page.text, edits), budget)
        except BudgetExceeded:
            pass
        return text, ()

    def _edits(self, page: TextView, prompt: str, system: str, apart: bool) -> list[Edit]:
        """Return what one pass changes: of two rules that overlap, the one further left."""
        return select_edits(
            page.text,
            [
                *self._tokens.edits(page, apart),
                *self._markup.edits(page, prompt),
                *self._opening.edits(page, prompt, system),
                *self._closing.edits(page),
                *self._pipes.edits(page),
                *self._punctuation.edits(page),
                *self._blank_lines.edits(page),
            ],
        )


def _check_patterns(name: str, rule: SanitizerRule) -> None:
    """Compile every pattern of a rule alone, so that an error names the rule and the pattern."""
    for source in rule.patterns:
        try:
            pattern = Pattern(source)
        except ValueError as error:
            raise ValueError(f"sanitizer.{name}: {error}") from None
        if pattern.found(TextView("")):
            raise ValueError(f"sanitizer.{name}: {source!r} matches a text without characters")
        if name in _RULES_WITH_GROUP and pattern.groups != 1:
            raise ValueError(f"sanitizer.{name}: {source!r} needs one group, around what goes")
    if "" in rule.words:
        raise ValueError(f"sanitizer.{name}: a word without letters")
