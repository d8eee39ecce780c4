"""The part of a schema that engines can hold answers to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from engine.schema.held_schema import HELD_FORMATS, HeldSchema, find_held_schema
from engine.schema.trial_process import _Vocabulary

LOOK_AHEAD = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"


def test_schema_without_exotic_keywords_is_fully_held() -> None:
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


@pytest.mark.parametrize(
    ("schema", "held"),
    [
        ({"type": "integer"}, ["7", "-999999999999999"]),
        ({"type": "integer", "minimum": 0}, ["0", "999999999999999"]),
        ({"type": "number"}, ["-12.5", "0.1234567891", "999999999999999"]),
        ({"type": "number", "exclusiveMaximum": 0}, ["-0.5", "-12"]),
        ({"type": "number", "minimum": 0}, ["0.5", "12"]),
        ({"type": ["number", "null"]}, ["null", "3.14"]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, ["0.5"]),
        ({"type": "integer", "maximum": 10**18}, ["1000000000000000000"]),
        ({"type": "number", "maximum": 1e-12, "exclusiveMinimum": 0}, ["0.0000000000001"]),
        ({"type": "integer", "enum": [10**17]}, ["100000000000000000"]),
        ({"type": "number", "multipleOf": 0.5}, ["2.5"]),
    ],
)
def test_numbers_end_unless_the_schema_has_larger_ones(
    schema: dict[str, Any], held: list[str]
) -> None:
    part = find_held_schema({"anyOf": [schema]})
    assert not part.left_out
    for number in held:
        assert accepts(part.schema, number), number
    if "enum" not in schema and schema.get("maximum", 0) <= 1 and schema.get("maximum", 1) > 0.1:
        assert not accepts(part.schema, "1234567890123456")
        if schema.get("minimum", schema.get("exclusiveMinimum", -1)) >= 0:
            assert not accepts(part.schema, "0.12345678912345678")


def test_multiple_of_numbers_that_cannot_be_positive_is_left_out() -> None:
    held = find_held_schema({"items": {"type": "number", "maximum": 0, "multipleOf": 5}})
    assert held.left_out == ("multipleOf",)
    assert "multipleOf" not in held.schema["items"]


@pytest.mark.parametrize(
    ("form", "texts", "others"),
    [
        ("time", ["12:30:00Z", "23:59:59.123456+01:00"], ["12:30:00.1234567Z", "24:00:00Z"]),
        ("date-time", ["2024-02-28T12:30:00Z"], ["2024-13-01T00:00:00Z", "2024-04-31T00:00:00Z"]),
        ("duration", ["P1D", "PT5M", "P1Y2M3DT4H5M6S", "P3W"], ["P", "PT", "P1234567D"]),
    ],
)
def test_times_and_durations_end(form: str, texts: list[str], others: list[str]) -> None:
    held = find_held_schema({"items": {"type": "string", "format": form}})
    assert not held.left_out
    for text in (*texts, *others):
        assert accepts(held.schema["items"], f'"{text}"') is (text in texts), text


def accepts(schema: Mapping[str, Any], text: str) -> bool:
    vocabulary = _Vocabulary()
    tokenizer = LLTokenizer(
        TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=[256]
    )
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()
