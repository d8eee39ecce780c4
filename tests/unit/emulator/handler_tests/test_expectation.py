"""Matching of outputs: equality of JSON values, and objects with some of the keys."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.handler_tests.expectation import (
    Mismatch,
    contains,
    find_mismatch,
    is_equal,
    select_part,
)
from emulator.tests_file.reader import HandlerTest


def build(**fields: Any) -> HandlerTest:
    return HandlerTest(name="a", input={}, **fields)


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (None, None, True),
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        ("1", 1, False),
        (None, False, False),
        ([], {}, False),
        ([1, [2]], [1.0, [2]], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": None}, {}, False),
        ({"a": [True]}, {"a": [1]}, False),
    ],
)
def test_is_equal_compares_json_values(first: Any, second: Any, equal: bool) -> None:
    assert is_equal(first, second) is equal
    assert is_equal(second, first) is equal


@pytest.mark.parametrize(
    ("output", "part", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"b": None}, False),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 2}}, True),
        ([{"a": 1, "b": 2}, 3], [{"a": 1}, 3], True),
        ([1, 2], [1], False),
        ("text", "tex", False),
        (1, True, False),
        ([], {}, False),
    ],
)
def test_contains_ignores_other_keys_of_objects(output: Any, part: Any, expected: bool) -> None:
    assert contains(output, part) is expected


def test_select_part_keeps_the_compared_keys() -> None:
    output = {"a": {"x": 1, "y": 2}, "b": 3, "c": [{"x": 1, "y": 2}], "d": [1, 2]}
    part = {"a": {"x": 9}, "c": [{"y": 9}], "d": [1], "e": 1}
    assert select_part(output, part) == {"a": {"x": 1}, "c": [{"y": 2}], "d": [1, 2]}


def test_status_is_compared_before_the_output() -> None:
    test = build(expected_output=1)
    assert find_mismatch(test, "COMPLETED", 1) is None
    assert find_mismatch(test, "FAILED", 1) == Mismatch("the status is FAILED, expected COMPLETED")
    assert find_mismatch(build(expected_status="FAILED"), "FAILED", None) is None


def test_output_is_compared_only_if_it_is_expected() -> None:
    assert find_mismatch(build(), "COMPLETED", {"any": 1}) is None
    assert find_mismatch(build(expected_output=None), "COMPLETED", None) is None
    mismatch = find_mismatch(build(expected_output=None), "COMPLETED", 1)
    assert mismatch == Mismatch(
        "the output differs", ["--- expected", "+++ actual", "@@ -1 +1 @@", "-null", "+1"]
    )


def test_diff_of_a_part_leaves_out_the_other_keys() -> None:
    mismatch = find_mismatch(build(expected_part={"a": 1}), "COMPLETED", {"a": 2, "secret": 3})
    assert mismatch is not None
    assert mismatch.reason == "the output does not contain what is expected"
    assert mismatch.diff[2:] == ["@@ -1,3 +1,3 @@", " {", '-  "a": 1', '+  "a": 2', " }"]
