"""Count the values of a JSON text, and parse large texts."""

from __future__ import annotations

import gc
import json
from typing import Any

import orjson
import pytest
from hypothesis import given

from handler.input.json_values import has_more_values, parse_json
from tests.unit.handler.json_values import json_values


def count(value: Any) -> int:
    """Count the marks of a JSON value: commas, colons and opening brackets outside strings."""
    if isinstance(value, dict):
        return 1 + 2 * len(value) - bool(value) + sum(map(count, value.values()))
    if isinstance(value, list):
        return 1 + len(value) - bool(value) + sum(map(count, value))
    return 0


@given(json_values())
def test_has_more_values_counts_elements_keys_and_containers(value: Any) -> None:
    text = json.dumps(value).encode()
    expected = count(value)
    # A lone string may count as one value.
    assert not has_more_values(text, max(expected, 1))
    if expected:
        assert has_more_values(text, expected - 1)


@pytest.mark.parametrize(
    "text", ['{"a": "' + r"\",:[{" * 100 + '"}', '{"a": "' + ",:[{" * 100 + '\\\\"}']
)
def test_has_more_values_does_not_count_marks_inside_strings(text: str) -> None:
    assert json.loads(text)
    assert not has_more_values(text.encode(), 2)


def test_parse_json_of_a_large_text_leaves_the_garbage_collector_on() -> None:
    assert parse_json(b"[" + b"1," * 200_000 + b"1]") == [1] * 200_001
    with pytest.raises(orjson.JSONDecodeError):
        parse_json(b"[" + b"1," * 200_000)
    assert gc.isenabled()
