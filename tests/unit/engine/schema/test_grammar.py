"""Schemas as grammars; schemas that cannot be enforced are refused with a reason."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from llguidance import LLMatcher

from engine.errors import RequestRejected
from engine.prompts.reasoning import Thinking
from engine.schema.grammar import (
    build_grammar,
    find_schema_violation,
)
from engine.schema.schema_limits import MIN_NUMBER


def chain(length: int) -> dict[str, Any]:
    """Each definition is an array of the next; recursion would overflow the stack."""
    links: dict[str, Any] = {
        f"a/{number}": {"items": {"$ref": f"#/$defs/a~1{number + 1}"}} for number in range(length)
    }
    return {"$defs": {**links, f"a/{length}": {"type": "null"}}, "$ref": "#/$defs/a~10"}


def deep_in(name: str, ref: str) -> dict[str, Any]:
    """Twice the allowed depth, if references are followed."""
    return {"$defs": {name: nested(250)}, "$ref": ref}


def listed(length: int) -> dict[str, Any]:
    """A chain of references, each of them in a list."""
    links = {
        f"a{number}": {"anyOf": [{"$ref": f"#/$defs/a{number + 1}"}]} for number in range(length)
    }
    return {"$defs": {**links, f"a{length}": {}}, "$ref": "#/$defs/a0"}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


HELD: list[dict[str, Any]] = [
    {},
    {"type": "object"},
    {"type": "string", "pattern": "^[a-c]+$", "maxLength": 9},
    {"properties": {'é"/#\n': {"const": "</think>"}}},
    {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    chain(120),
    listed(60),
    nested(100),
    {"prefixItems": [{"type": "null"}, {"$ref": "#/prefixItems/0"}, {"$ref": "#"}]},
    {"oneOf": [{"const": 1}, {"type": "integer", "maximum": 5}]},
    # Requests must not set options of the library.
    {"x-guidance": {"whitespace_flexible": True}},
]
NOT_HELD: list[tuple[dict[str, Any], str]] = [
    ({"type": "name"}, "Invalid type: name"),
    ({"not": {"type": "string"}}, 'Unimplemented keys: ["not"]'),
    ({"type": "array", "uniqueItems": True}, 'Unimplemented keys: ["uniqueItems"]'),
    ({"enum": []}, "Unsatisfiable schema"),
    ({"$ref": "http://127.0.0.1:9/a.json"}, "a $ref must be within the schema"),
    ({"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}}, "a $ref must be within the schema"),
    ({"$ref": "#/$defs/none"}, "Pointer '/$defs/none' does not exist"),
    ({"$ref": f"#/anyOf/{'9' * 5000}", "anyOf": []}, "Failed to parse array index"),
    (chain(1500), "more than 400 levels"),
    (listed(500), "more than 400 levels"),
    (deep_in("a", "#/$defs/a"), "more than 400 levels"),
    (deep_in("a/~", "#/$defs/a~1~0"), "more than 400 levels"),
    (deep_in("a b", "#/$defs/a%20b"), "more than 400 levels"),
    (nested(200), "levels deep"),
    (nested(500), "more than 400 levels"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"properties": {str(number): {} for number in range(6000)}}, "a grammar of about"),
]


@pytest.mark.parametrize("schema", HELD, ids=str)
def test_schema_becomes_a_grammar(schema: dict[str, Any]) -> None:
    assert find_schema_violation(schema) is None
    for thinking in get_args(Thinking):
        grammar = build_grammar(schema, thinking)
        assert LLMatcher.validate_grammar(grammar) == ""
        assert grammar.startswith("%llguidance {}\nstart: ")
        assert ("thoughts" in grammar) is (thinking != "none")
        # On one line, even if the request asks for another format.
        assert '"whitespace_flexible": false' in grammar
        assert '"whitespace_flexible": true' not in grammar


@pytest.mark.parametrize(("schema", "why"), NOT_HELD, ids=[why for _, why in NOT_HELD])
def test_schema_that_cannot_be_enforced_is_refused_with_a_reason(
    schema: dict[str, Any], why: str
) -> None:
    violation = find_schema_violation(schema)
    assert violation is not None
    assert why in violation
    assert "\n" not in violation
    assert len(violation) <= 300
    with pytest.raises(RequestRejected, match="json_schema: answers cannot be held to it: ") as no:
        build_grammar(schema)
    assert no.value.details["param"] == "json_schema"


@pytest.mark.parametrize(
    "schema",
    [
        {"const": -(2**63)},
        {"enum": [1, [{"a": MIN_NUMBER - 1}]]},
        {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)},
        {"allOf": [{"type": "integer", "maximum": -1e300}, {"minimum": -1e300}]},
        {"properties": {"default": {"type": "integer", "minimum": -(2**70), "maximum": -(2**70)}}},
        {"anyOf": [{"prefixItems": [{"const": -(10**400)}]}]},
    ],
)
def test_number_that_ends_the_library_is_refused(schema: dict[str, Any]) -> None:
    violation = find_schema_violation(schema)
    assert violation is not None
    assert violation.startswith(f"its numbers must be at least {MIN_NUMBER}, got -")
    assert len(violation) < 150


@pytest.mark.parametrize(
    "schema",
    [
        {"const": MIN_NUMBER},
        {"type": "integer", "minimum": MIN_NUMBER, "maximum": MIN_NUMBER},
        {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
        {"type": "number", "const": 2**70},
    ],
)
def test_number_that_the_library_survives_is_accepted(schema: dict[str, Any]) -> None:
    assert find_schema_violation(schema) is None
