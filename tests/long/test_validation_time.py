"""Validation takes time linear in the answer, whatever it says."""

from __future__ import annotations

import pytest

from benchmarks.validation import NASTY, Everything, prose, repeated


@pytest.fixture(scope="module")
def everything() -> Everything:
    return Everything()


@pytest.mark.parametrize("name", ["prose", *NASTY])
def test_a_megabyte_takes_four_times_what_a_quarter_takes(
    everything: Everything, name: str
) -> None:
    def seconds(size: int) -> float:
        text = prose(size) if name == "prose" else repeated(NASTY[name], size)
        return min(everything.seconds(text) for _ in range(3))

    quarter, whole = seconds(250_000), seconds(1_000_000)
    # Quadratic would be sixteen; what takes next to nothing is all noise.
    assert whole < 8 * quarter + 0.05
    # Under a second on an idle machine; here others may be at work.
    assert whole < 3
