"""Compare the size of JSON values with a limit."""

from __future__ import annotations

import time
from typing import Any

import pytest

from common.json_size import exceeds, has_more_members


@pytest.mark.parametrize(
    ("value", "size"),
    [("", 0), ("abc", 3), (5, 1), (None, 1), ([], 0), ([1, 2], 4), ({"ab": "c"}, 4), ([["a"]], 3)],
)
def test_exceeds_counts_characters_numbers_and_members(value: Any, size: int) -> None:
    assert not exceeds(value, size)
    assert exceeds(value, size - 1)


@pytest.mark.parametrize(("value", "members"), [([1, [2, 3]], 4), ({"a": {"b": []}}, 2)])
def test_has_more_members_counts_nested_members_too(value: Any, members: int) -> None:
    assert not has_more_members(value, members)
    assert has_more_members(value, members - 1)


def test_both_stop_at_the_limit() -> None:
    wide: Any = [[0] * 1_000_000] * 20
    deep: Any = []
    for _ in range(200_000):
        deep = [deep]
    # CPU time of this thread, which does not depend on the load of the machine.
    started_s = time.thread_time()
    for value in (wide, deep, {"a": wide}, "x" * 20_000_000):
        assert exceeds(value, 1_000)
    assert has_more_members(wide, 1_000)
    assert has_more_members(deep, 1_000)
    assert time.thread_time() - started_s < 0.1
