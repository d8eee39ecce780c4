"""The faults are documented, and their names are not ambiguous."""

from __future__ import annotations

from pathlib import Path

from emulator.middleware.faults.catalogue import (
    EXCLUSIVE_GROUPS,
    FAULT_KINDS,
    JSON_FAULTS,
    REPLACEMENTS,
    RESPONSE_FAULTS,
    RULE_FAULTS,
    STREAM_FAULTS,
    describe_faults,
)
from emulator.middleware.faults.parser import parse_faults

PAGE = Path(__file__).resolve().parents[5] / "docs" / "faults.md"


def test_page_has_a_row_for_each_fault() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    expected = [f"| `{kind.usage()}` | {kind.meaning} |" for kind in FAULT_KINDS.values()]
    assert [row for row in rows if row in expected] == expected


def test_names_are_unique() -> None:
    groups = (REPLACEMENTS, RESPONSE_FAULTS, JSON_FAULTS, STREAM_FAULTS, RULE_FAULTS)
    assert sum(map(len, groups)) == len(FAULT_KINDS)


def test_excluded_faults_exist() -> None:
    for group in EXCLUSIVE_GROUPS:
        assert group <= FAULT_KINDS.keys()


def test_example_of_each_fault_is_a_valid_fault() -> None:
    for fault in describe_faults():
        name, example = fault["name"], fault["example"]
        # `retry-after` is only valid together with an error status.
        text = f"status=429; {example}" if name == "retry-after" else example
        assert name in parse_faults(text)
