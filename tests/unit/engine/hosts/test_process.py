"""The pause before a host that has died gets a successor."""

from __future__ import annotations

import itertools

from engine.hosts.process import FIRST_BACKOFF_S, MAX_BACKOFF_S, backoff_s


def test_pause_doubles_with_each_crash_in_a_row_up_to_a_limit() -> None:
    # R54
    pauses = [backoff_s(crashes) for crashes in range(1, 20)]
    assert pauses[0] == FIRST_BACKOFF_S
    for before, after in itertools.pairwise(pauses):
        assert after == min(2 * before, MAX_BACKOFF_S)
    assert pauses[-1] == MAX_BACKOFF_S
