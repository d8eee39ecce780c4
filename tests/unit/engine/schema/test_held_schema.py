"""The part of a schema that engines can hold answers to."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher

from engine.schema.held_schema import HELD_FORMATS, HeldSchema, find_held_schema

LOOK_AHEAD = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"


def test_schema_without_exotic_keywords_is_held_whole() -> None:
    schema = {
        "type": "object",
        "title": "Person",
        "properties": {"name": {"type": "string", "pattern": "^a+$", "format": "date"}},
        "required": ["name"],
        "additionalProperties": False,
        "$defs": {"format": {"type": "string"}},
    }
    assert find_held_schema(schema) == HeldSchema(schema, ())


@pytest.mark.parametrize(
    ("part", "held", "left_out"),
    [
        ({"type": "string", "format": "uri"}, {"type": "string"}, "format uri"),
        ({"type": "string", "format": "password"}, {"type": "string"}, "format password"),
        ({"type": "string", "pattern": LOOK_AHEAD}, {"type": "string"}, f"pattern {LOOK_AHEAD}"),
        ({"type": "string", "pattern": r"(a)\1"}, {"type": "string"}, r"pattern (a)\1"),
        ({"type": "array", "uniqueItems": True}, {"type": "array"}, "uniqueItems"),
        ({"not": {"type": "string"}}, {}, "not"),
    ],
)
def test_keyword_that_no_engine_holds_is_left_out_and_named(
    part: dict[str, Any], held: dict[str, Any], left_out: str
) -> None:
    places: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"anyOf": [part]}, {"anyOf": [held]}),
        ({"items": part}, {"items": held}),
        ({"$defs": {"x": part}}, {"$defs": {"x": held}}),
    ]
    for schema, expected in places:
        assert find_held_schema(schema) == HeldSchema(expected, (left_out,))


def test_data_and_names_are_no_keywords() -> None:
    schema = {
        "enum": [{"format": "uri"}],
        "default": {"not": 1},
        "properties": {"not": {"const": {"format": "uri"}}, "format": {"type": "string"}},
        "additionalProperties": False,
    }
    assert find_held_schema(schema) == HeldSchema(schema, ())


@pytest.mark.parametrize(
    ("schema", "is_closed"),
    [
        ({"properties": {"a": {}}}, True),
        ({"type": "object"}, False),
        ({"properties": {"a": {}}, "patternProperties": {"b": {}}}, False),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, False),
    ],
)
def test_object_with_properties_is_closed(schema: dict[str, Any], is_closed: bool) -> None:
    held = find_held_schema({"items": schema}).schema["items"]
    assert ("additionalProperties" in held) is is_closed
    assert not is_closed or held["additionalProperties"] is False


def test_objects_are_open_where_schemas_are_combined() -> None:
    schema: dict[str, Any] = {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    assert find_held_schema(schema) == HeldSchema(schema, ())


def test_open_object_stays_open() -> None:
    schema = {"properties": {"a": {}}, "additionalProperties": {"type": "string"}}
    assert find_held_schema(schema) == HeldSchema(schema, ())


@pytest.mark.parametrize("name", sorted(HELD_FORMATS))
def test_held_formats_are_known_to_the_library(name: str) -> None:
    grammar = LLMatcher.grammar_from_json_schema({"type": "string", "format": name})
    assert LLMatcher.validate_grammar_with_warnings(grammar) == (False, [])
