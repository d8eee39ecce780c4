"""Schemas that are too costly are refused by an estimate, in a sentence that names the field."""

from __future__ import annotations

import time
from typing import Any

import pytest

from engine.schema.grammar_cost import (
    MAX_ITEMS,
    MAX_LENGTH,
    MAX_OPTIONAL_PARTS,
    MAX_REPETITIONS,
    count_repetitions,
    estimate_symbols,
    find_cost_violation,
)

_BILLION = 1_000_000_000
_DOUBLING: dict[str, Any] = {
    f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}, {"minItems": number}]}
    for number in range(20)
}
_DEEP: dict[str, Any] = {}
for _ in range(200):
    _DEEP = {"items": _DEEP}
TOO_COSTLY: list[tuple[dict[str, Any], str]] = [
    ({"minItems": 2 * _BILLION}, "minItems must be at most 5000, got 2000000000"),
    ({"maxItems": _BILLION}, "maxItems must be at most 1000 above minItems"),
    ({"properties": {"a": {"items": {"maxItems": 10**6}}}}, "properties.a.items.maxItems must"),
    ({"$defs": {"a": {"maxItems": 10**6}}, "$ref": "#/$defs/a"}, "$defs.a.maxItems must"),
    (
        {"prefixItems": [{}] * 2_000},
        "prefixItems must have at most 1000 schemas more than minItems",
    ),
    ({"maxItems": 1e9}, "got 1000000000"),
    ({"minLength": 2 * _BILLION}, "minLength must be at most 65536"),
    ({"anyOf": [{"maxLength": 10**6}]}, "anyOf.0.maxLength must be at most 65536"),
    ({"minProperties": _BILLION}, "minProperties must be at most 65536"),
    ({"maxProperties": _BILLION}, "maxProperties must be at most 65536"),
    ({"pattern": "^(a{1,1000}){1,1000}$"}, "pattern must repeat its parts at most 10000 times"),
    ({"pattern": "^a{2000000000}$"}, "nested counts multiplied, got 2000000000"),
    ({"patternProperties": {"^a{99999}$": {}}}, "patternProperties must repeat its parts"),
    ({"type": "integer", "multipleOf": 1_000_003}, "multipleOf must have digits"),
    ({"allOf": [{"multipleOf": 101}, {"multipleOf": 10_007}]}, "a grammar of about 3032"),
    ({"properties": {f"k{number}": {} for number in range(2_000)}}, "a grammar of about 48010"),
    (
        {"properties": {f"k{number}": {} for number in range(500)}, "minProperties": 1},
        "a grammar of about 35",
    ),
    ({"prefixItems": [{"type": "integer"}] * 3_000, "minItems": 3_000}, "a grammar of about"),
    ({"anyOf": [{"items": {"const": 1}, "maxItems": 600}] * 2}, "could have 1200 optional parts"),
    ({"anyOf": [{"type": "array"}] * 300}, "an alternative that is an array or object as 4"),
    ({"properties": {f"k{number}": {} for number in range(600)}}, "an optional property as 2"),
    (
        {"properties": {f"k{number}": {"type": "null"} for number in range(9)}, "oneOf": [{}] * 50},
        "could have 1300 optional parts",
    ),
    ({"$defs": {**_DOUBLING, "d20": {}}, "anyOf": [{"minItems": 3_000}] * 4}, "about 72"),
    (
        {"allOf": [{"anyOf": [{"minItems": one} for one in range(50)]} for _ in range(4)]},
        "can be combined in more than 2000 ways",
    ),
]
_DOUBLING_DEFS: dict[str, Any] = {
    f"d{level}": {"prefixItems": [{"$ref": f"#/$defs/d{level + 1}", "minItems": 1}] * 2}
    for level in range(40)
}
# Schemas of a few kB for which the estimate itself would take seconds, or never end.
COSTLY_TO_ESTIMATE: dict[str, dict[str, Any]] = {
    "reference to itself": {"anyOf": [{"$ref": "#", "maxItems": 1}]},
    "two references to itself": {"anyOf": [{"$ref": "#", "maxItems": 1}, {"$ref": "#", "type": 1}]},
    "doubling": {"$defs": {**_DOUBLING_DEFS, "d40": {}}, "$ref": "#/$defs/d0"},
    "many values in many ways": {"anyOf": [{"minItems": 1}] * 1_900, "enum": [1] * 15_000},
    "many parts in many ways": {"anyOf": [{"minItems": 1}] * 1_900, "allOf": [{"a": 1}] * 5_000},
    "long references": {
        "anyOf": [{"$ref": "#" + "/a" * 5_000, "minItems": number} for number in range(500)]
    },
    "deep": _DEEP,
}
ACCEPTED: list[dict[str, Any]] = [
    {},
    {"maxItems": MAX_OPTIONAL_PARTS},
    {"minItems": MAX_ITEMS},
    {"minItems": MAX_ITEMS, "maxItems": MAX_ITEMS},
    {"maxLength": MAX_LENGTH},
    {"maxProperties": 10_000},
    {"pattern": "^[a-z]{1,255}@[a-z]{1,255}$"},
    {"type": "number", "multipleOf": 0.01},
    {"enum": [f"k{number}" for number in range(9_000)]},
    {"properties": {f"k{number}": {"type": "string"} for number in range(498)}},
    {
        "properties": {f"k{number}": {"type": "string"} for number in range(1_000)},
        "required": [f"k{number}" for number in range(1_000)],
    },
    {"anyOf": [{"type": "array", "items": {"const": number}} for number in range(250)]},
    {"anyOf": [{"type": "string", "pattern": f"^{number}"} for number in range(900)]},
    {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"maxItems": 900}}},
    # Names of properties, defaults and values are no counts.
    {"properties": {"maxItems": {"type": "integer", "default": {"maxItems": _BILLION}}}},
    {"enum": [{"maxItems": _BILLION}]},
    # A tree: the reference back to the root becomes one rule.
    {"properties": {"children": {"items": {"$ref": "#"}, "maxItems": 500}}},
    {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
    {"minItems": "many", "maxItems": None, "allOf": 3, "anyOf": {}, "$ref": 5, "required": "x"},
    {"multipleOf": "none", "properties": [], "pattern": 5, "items": [], "anyOf": []},
]


@pytest.mark.parametrize(("schema", "why"), TOO_COSTLY, ids=[why for _, why in TOO_COSTLY])
def test_costly_schema_is_refused_naming_the_field(schema: dict[str, Any], why: str) -> None:
    violation = find_cost_violation(schema)
    assert violation is not None
    assert why in violation
    assert len(violation) < 300


@pytest.mark.parametrize("schema", ACCEPTED, ids=lambda schema: str(schema)[:60])
def test_schema_within_the_limits_is_accepted(schema: dict[str, Any]) -> None:
    assert find_cost_violation(schema) is None


@pytest.mark.parametrize("name", COSTLY_TO_ESTIMATE)
def test_estimate_stops_after_a_limited_number_of_steps(name: str) -> None:
    began_s = time.thread_time()
    assert find_cost_violation(COSTLY_TO_ESTIMATE[name]) is not None
    assert time.thread_time() - began_s < 1


def test_estimate_counts_a_definition_once_and_a_merged_one_each_time() -> None:
    definition = {"a": {"type": "array", "minItems": 1_000}}
    single = {"$defs": definition, "prefixItems": [{"$ref": "#/$defs/a"}] * 9}
    merged = {
        "$defs": definition,
        "prefixItems": [{"$ref": "#/$defs/a", "maxItems": 1_001}] * 9,
    }
    assert estimate_symbols(single) < 2 * 6_000
    assert estimate_symbols(merged) > 9 * 6_000


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("abc", 0),
        ("a{5}", 5),
        ("a{2,7}", 7),
        ("a{3,}", 3),
        ("(a{10}){10}", 100),
        ("((a{10}){10}b{5}){2}", 210),
        ("(a){4}{5}", 20),
        ("a{4}{5}", 20),
        (r"\(a{4}\){5}", 9),
        ("[(){9}]{3}", 3),
        ("[^]{9}]{3}", 3),
        ("a{" + "9" * 5_000 + "}", 999_999_999_999),
        (")))a{3}(((", 3),
    ],
)
def test_repetitions_multiplies_nested_counts(pattern: str, count: int) -> None:
    assert count_repetitions(pattern) == count


def test_repetitions_of_hostile_patterns_take_linear_time() -> None:
    for pattern in ("(" * 100_000, "[" * 100_000, "a{" * 50_000, "\\" * 99_999, "(a{9}" * 20_000):
        assert count_repetitions(pattern) >= 0
    assert MAX_REPETITIONS < count_repetitions("(a{99})" * 1_000)
