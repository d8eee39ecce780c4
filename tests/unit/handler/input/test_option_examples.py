"""Run every example of an option in docs/validation.md as a request."""

from __future__ import annotations

import pytest

from handler.input.options import OptionsInput, OptionsReader
from tools.docs.validation import OptionRule, option_rules
from validation import Subject
from validation.rules import Example
from validation.rules_validator import RulesValidator

RULES = option_rules()
EXAMPLES = [
    pytest.param(name, rule, example, id=f"{name}-{number}")
    for name, rule in RULES.items()
    for number, example in enumerate(rule.examples)
]
V = RulesValidator.from_file()
READER = OptionsReader(OptionsInput(), V.intents)


def examples(rule: OptionRule, text: str) -> set[str]:
    """The ids of the rules that find something in a text, as prompt and as answer."""
    options, warnings = READER.read(rule.validation)
    assert warnings == ()
    refusal = V.check_request(text, text, options)
    if refusal is not None:
        return {issue.rule for issue in refusal.issues}
    rules: set[str] = set()
    if options.redactor is not None:
        rules = {removal.rule for removal in options.redactor.redact(text)[1]}
    plain = {issue.rule for issue in V.validate(Subject(prompt="?", text=text), options).issues}
    return rules | plain


@pytest.mark.parametrize(("name", "rule", "example"), EXAMPLES)
def test_what_it_catches_and_what_it_leaves(name: str, rule: OptionRule, example: Example) -> None:
    assert examples(rule, example.catches) == {name}
    assert examples(rule, example.leaves) == set()


def test_every_field_has_a_rule() -> None:
    fields = {field for rule in RULES.values() for field in rule.validation}
    # These two act on what the rules find.
    assert fields | {"regenerate", "repair_json"} == set(OptionsInput.model_fields)
