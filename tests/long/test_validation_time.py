"""The time of a validation is linear in the size of the answer, for any text."""

from __future__ import annotations

import pytest

from tests.long.validation_texts import NASTY, Everything, prose, repeated


@pytest.fixture(scope="module")
def everything() -> Everything:
    return Everything()


@pytest.mark.parametrize("name", ["prose", *NASTY])
def test_validation_time_is_linear_in_the_size(everything: Everything, name: str) -> None:
    def seconds(size: int) -> float:
        text = prose(size) if name == "prose" else repeated(NASTY[name], size)
        return min(everything.seconds(text) for _ in range(3))

    quarter, megabyte = seconds(250_000), seconds(1_000_000)
    # Quadratic time would be 16 times; the constant allows for noise in very short times.
    assert megabyte < 8 * quarter + 0.05
    # Under a second on an idle machine; a test machine may be busy.
    assert megabyte < 3
