"""The pause before a crashed host is restarted."""

from __future__ import annotations

import itertools

from engine.hosts.losses.loss import Loss
from engine.hosts.losses.restart_policy import (
    FIRST_BACKOFF_S,
    LOAD_RETRY_PAUSE_S,
    MAX_BACKOFF_S,
    MAX_FIRST_CRASHES,
    MAX_LOAD_RETRIES,
    RestartPolicy,
)

LOSS = Loss("it crashed", "Segmentation fault")


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


def crash(policy: RestartPolicy, times: int) -> None:
    for _ in range(times):
        policy.record_crash(0.0)


def test_host_without_a_finished_run_fails_after_its_first_crashes() -> None:
    policy = RestartPolicy()
    crash(policy, MAX_FIRST_CRASHES - 1)
    assert policy.is_last_start
    assert policy.find_fatal_error(LOSS, 0.0, 300.0) is None
    crash(policy, 1)
    error = policy.find_fatal_error(LOSS, 0.0, 300.0)
    assert error is not None
    assert error.message == (
        "the engine crashed 5 times in a row while it loaded the model for the first time, and is "
        "not started again: it crashed; last output: Segmentation fault"
    )
    policy.record_load(has_run=False)
    error = policy.find_fatal_error(LOSS, 0.0, 300.0)
    assert error is not None
    assert "and has not finished one request since its start" in error.message


def test_host_with_a_finished_run_fails_only_after_its_limit() -> None:
    policy = RestartPolicy()
    policy.record_finished_run()
    crash(policy, MAX_FIRST_CRASHES)
    assert policy.find_fatal_error(LOSS, 299.0, 300.0) is None
    error = policy.find_fatal_error(LOSS, 300.0, 300.0)
    assert error is not None
    assert "within 300 s (ENGINE_DOWN_EXIT_S), after 5 crashes in a row" in error.message


def test_start_that_the_system_refuses_is_no_sign_of_a_broken_model() -> None:
    policy, refused = RestartPolicy(), Loss("no memory", "none", was_started=False)
    crash(policy, MAX_FIRST_CRASHES)
    assert policy.find_fatal_error(refused, 0.0, 300.0) is None


def test_run_of_the_load_counts_as_finished() -> None:
    policy = RestartPolicy()
    policy.record_load(has_run=True)
    crash(policy, MAX_FIRST_CRASHES)
    assert policy.find_fatal_error(LOSS, 0.0, 300.0) is None


def test_first_load_is_repeated_only_for_a_transient_reason_and_not_without_end() -> None:
    policy = RestartPolicy()
    assert not policy.record_failed_load(is_transient=False)
    policy.forget_failures()
    repeats = [policy.record_failed_load(is_transient=True) for _ in range(MAX_LOAD_RETRIES + 1)]
    assert repeats == [True] * MAX_LOAD_RETRIES + [False]
    assert policy.pause_s == LOAD_RETRY_PAUSE_S


def test_later_load_is_always_repeated_with_the_pauses_of_crashes() -> None:
    policy = RestartPolicy()
    policy.record_load(has_run=False)
    assert policy.record_failed_load(is_transient=False)
    assert policy.pause_s == FIRST_BACKOFF_S
