"""Copying rows of floats from memory of the library."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any

import pytest

from engine.backends.rkllm.float_rows import FloatRows


def pointer(*numbers: float) -> Any:
    memory = (ctypes.c_float * len(numbers))(*numbers)
    return ctypes.cast(memory, ctypes.POINTER(ctypes.c_float))


@pytest.mark.parametrize(
    ("first", "count", "expected"),
    [(0, 3, [1, 2, 3, 4, 5, 6]), (2, 1, [5, 6]), (0, 1, [1, 2]), (1, 2, [3, 4, 5, 6])],
)
def test_copy_returns_the_requested_rows(first: int, count: int, expected: list[float]) -> None:
    rows = FloatRows.from_pointer(pointer(1, 2, 3, 4, 5, 6), 3, 2)
    assert rows is not None
    assert (rows.count, rows.width) == (3, 2)
    assert array("f", rows.copy(first, count)).tolist() == expected


@pytest.mark.parametrize(("count", "width"), [(0, 2), (3, 0), (-1, 2), (3, -2)])
def test_empty_rows_are_none(count: int, width: int) -> None:
    assert FloatRows.from_pointer(pointer(1, 2), count, width) is None


def test_null_pointer_is_none() -> None:
    assert FloatRows.from_pointer(ctypes.POINTER(ctypes.c_float)(), 1, 1) is None
