"""JSON that is repaired, and texts that are left as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from handler.input.options import NO_DEFAULTS
from validation import Subject, Verdict
from validation.options.json_repair import MAX_CHARS, JsonRepairer
from validation.rules import DEFAULT_RULES
from validation.rules_validator import RulesValidator

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
VALIDATOR = RulesValidator.from_file(DEFAULT_RULES)


def validate(text: str, reason: str = "stop", **options: Any) -> Verdict:
    read, warnings = NO_DEFAULTS.read(options)
    assert warnings == ()
    subject = Subject(prompt="Which city?", text=text, finish_reason=reason)
    return VALIDATOR.validate(subject, read)


@pytest.mark.parametrize(
    "text",
    [
        "{'city': 'Oslo'}",
        '{"city": "Oslo",}',
        '{city: "Oslo"}',
        '{"city": "Oslo"',
        '{"city": "Oslo" /* the capital */}',
        'The answer is {"city": "Oslo"}.',
    ],
)
def test_answer_that_fails_its_schema_is_repaired(text: str) -> None:
    assert not validate(text, json_schema=CITY).valid
    verdict = validate(text, json_schema=CITY, repair_json=True)
    assert verdict.valid
    assert json.loads(verdict.text) == {"city": "Oslo"}
    assert [notice.rule for notice in verdict.notices] == ["repaired_json"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"city": 5,}', "stop"),
        ("It is Oslo.", "stop"),
        ('{"town": "Oslo",}', "stop"),
        # The rest of it is missing.
        ('{"city": "Os', "length"),
    ],
)
def test_answer_that_cannot_be_repaired_is_unchanged(text: str, reason: str) -> None:
    verdict = validate(text, reason, json_schema=CITY, repair_json=True)
    assert not verdict.valid
    assert verdict.text == text
    assert "repaired_json" not in [notice.rule for notice in verdict.notices]


def test_answer_that_passes_is_not_changed() -> None:
    text = '{"city":   "Oslo"}'
    verdict = validate(text, json_schema=CITY, repair_json=True)
    assert (verdict.text, verdict.valid, verdict.notices) == (text, True, ())


def test_any_object_or_array_passes_without_a_schema() -> None:
    verdict = validate("{'city': 'Oslo', 'more': [1, 2,]}", repair_json=True)
    assert json.loads(verdict.text) == {"city": "Oslo", "more": [1, 2]}
    assert not validate("It is Oslo.", repair_json=True).valid
    assert validate("It is Oslo.", repair_json=False).valid


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "part",
    ["[", '{"a":', '"', "{'a': ", '{"a": "b" "c" ', "x{y", '{"a":"', "/*", '","', "```json\n"],
)
def test_hostile_text_takes_bounded_time(part: str) -> None:
    repairer = JsonRepairer()
    repairer.repair((part * MAX_CHARS)[:MAX_CHARS])
    assert repairer.repair("{'a': 1}" + " " * MAX_CHARS) is None
