"""How deeply a value may be nested to be a part of an answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from common.json_depth import is_nested_too_deeply


@pytest.mark.parametrize(("levels", "expected"), [(0, False), (250, False), (255, True)])
def test_depth_that_cannot_be_written_is_recognised(levels: int, expected: bool) -> None:
    value: Any = orjson.loads("[" * levels + "1" + "]" * levels)
    assert is_nested_too_deeply(value) is expected
