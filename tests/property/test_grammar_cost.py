"""The estimated size of a schema's grammar is at least the size that llama.cpp's library builds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.schema.grammar_cost import MAX_SCHEMA_SYMBOLS, estimate_symbols
from engine.schema.schema_limits import find_schema_excess
from tests.llama_grammar import MIN_SYMBOLS, GrammarProcess

_NAMES = st.sampled_from(["a", "b", "c", "d"])
_COUNTS = st.sampled_from([0, 1, 2, 7, 50, 300])
_NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-(2**63), 2**64]),
)
_LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.just({"type": "null"}),
    st.just({"$ref": "#/$defs/one"}),
    st.just({"$ref": "#/$defs/two"}),
    st.builds(lambda max_length: {"type": "string", "maxLength": max_length}, _COUNTS),
    st.builds(lambda values: {"enum": values}, st.lists(st.integers(0, 999), min_size=1)),
    st.builds(
        lambda of: {"type": "integer", "multipleOf": of}, st.sampled_from([1, 3, 10, 250, 97])
    ),
    st.builds(
        lambda kind, limits: {"type": kind, **limits},
        st.sampled_from(["integer", "number"]),
        st.dictionaries(st.sampled_from(["minimum", "maximum", "exclusiveMaximum"]), _NUMBERS),
    ),
    st.sampled_from([{"type": "string", "pattern": "^[a-c]{2,40}$"}, {"type": ["null", "array"]}]),
    st.builds(
        lambda values: {"const": values},
        st.dictionaries(_NAMES, st.lists(st.integers(), max_size=5)),
    ),
)


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.builds(
        lambda items, min_items, more, prefix: {
            "type": "array",
            "items": items,
            "minItems": min_items,
            "maxItems": min_items + more,
            "prefixItems": prefix,
        },
        inner,
        _COUNTS,
        _COUNTS,
        st.lists(inner, max_size=3),
    )
    objects = st.builds(
        lambda properties, required, counts, more: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in required],
            **counts,
            "additionalProperties": more,
        },
        st.dictionaries(_NAMES, inner, max_size=4),
        st.sets(_NAMES),
        st.sampled_from([{}, {"minProperties": 1}, {"maxProperties": 1}, {"maxProperties": 9}]),
        st.one_of(st.booleans(), inner),
    )
    lists = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        arrays,
        objects,
        st.builds(lambda options: {"anyOf": options}, lists),
        st.builds(lambda options: {"oneOf": options}, lists),
        st.builds(lambda every: {"allOf": every}, lists),
        # The library merges the keys of the schema itself with each alternative.
        st.builds(lambda one, options: {**one, "anyOf": options}, arrays, lists),
        st.builds(lambda one: {**one, "$ref": "#/$defs/one"}, arrays),
    )


@pytest.fixture
def grammar_process() -> Iterator[GrammarProcess]:
    process = GrammarProcess()
    yield process
    process.close()


_SCHEMAS = st.recursive(_LEAVES, _nested, max_leaves=12)


@settings(
    max_examples=settings().max_examples // 10,
    deadline=None,
    suppress_health_check=[
        HealthCheck.filter_too_much,
        HealthCheck.too_slow,
        # All examples of a test share the process.
        HealthCheck.function_scoped_fixture,
    ],
)
@given(root=_SCHEMAS, one=_SCHEMAS, two=_SCHEMAS)
def test_estimate_is_never_below_the_size_of_the_real_grammar(
    grammar_process: GrammarProcess,
    root: dict[str, Any],
    one: dict[str, Any],
    two: dict[str, Any],
) -> None:
    schema = {**root, "$defs": {"one": one, "two": two}}
    # A refused schema never reaches the library.
    assume(find_schema_excess(schema) is None)
    # Schemas that the library does not support, or that allow no value, have no size.
    assume(not grammar_process.why_not_made(schema))
    estimate = estimate_symbols(schema)
    assert estimate <= MAX_SCHEMA_SYMBOLS
    # The smallest size is that of the grammar for any JSON value.
    assert grammar_process.symbols_of(schema) <= max(estimate + MIN_SYMBOLS, MIN_SYMBOLS)


@settings(
    max_examples=settings().max_examples // 10,
    deadline=None,
    suppress_health_check=[
        HealthCheck.filter_too_much,
        HealthCheck.too_slow,
        # All examples of a test share the process.
        HealthCheck.function_scoped_fixture,
    ],
)
@given(root=_SCHEMAS, one=_SCHEMAS)
def test_accepted_schema_is_never_too_large_for_the_library(
    grammar_process: GrammarProcess, root: dict[str, Any], one: dict[str, Any]
) -> None:
    schema = {**root, "$defs": {"one": one, "two": {"type": "null"}}}
    assume(find_schema_excess(schema) is None)
    assert "too big" not in grammar_process.why_not_made(schema)
