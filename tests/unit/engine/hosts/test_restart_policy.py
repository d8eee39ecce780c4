"""The pause before a crashed host is restarted."""

from __future__ import annotations

import itertools

from engine.hosts.restart_policy import FIRST_BACKOFF_S, MAX_BACKOFF_S, RestartPolicy


def test_pause_doubles_with_each_crash_in_a_row_up_to_a_limit() -> None:
    # R54
    policy, pauses = RestartPolicy(), list[float]()
    for _ in range(20):
        policy.record_crash(0.0)
        pauses.append(policy.pause_s)
    assert pauses[0] == FIRST_BACKOFF_S
    for before, after in itertools.pairwise(pauses):
        assert after == min(2 * before, MAX_BACKOFF_S)
    assert pauses[-1] == MAX_BACKOFF_S
    policy.reset()
    policy.record_crash(0.0)
    assert policy.pause_s == FIRST_BACKOFF_S


def test_pause_stays_at_its_limit_after_any_number_of_crashes() -> None:
    policy = RestartPolicy()
    policy.crashes_in_a_row = 1_000_000
    assert policy.pause_s == MAX_BACKOFF_S


def test_uncounted_crash_is_followed_by_the_shortest_pause() -> None:
    assert RestartPolicy().pause_s == FIRST_BACKOFF_S
