"""The pauses before the next start of a worker."""

from __future__ import annotations

import itertools

import pytest

from emulator.autoscaling.start_backoff import StartBackoff
from tests.unit.emulator.autoscaling.scene import AutoscalerScene


async def test_crashing_worker_is_restarted_with_a_growing_backoff() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    starts = []
    for _ in range(9):
        while not scene.alive:
            await scene.after(0.25)
        starts.append(scene.time)
        scene.alive[0].end(1)
    pauses = [later - sooner for sooner, later in itertools.pairwise(starts)]
    assert pauses == [pytest.approx(each, abs=0.5) for each in (1, 2, 4, 8, 16, 32, 60, 60)]
    # An exit after a period of work resets the backoff.
    while not scene.alive:
        await scene.after(0.25)
    scene.join(scene.alive[0])
    await scene.after(31)
    scene.alive[0].end(1)
    await scene.after(1.5)
    assert scene.alive


def test_pause_doubles_with_each_fault_up_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    backoff, pauses = StartBackoff(), list[float]()
    for _ in range(9):
        backoff.record_fault(100.0, "w1 crashed")
        pauses.append(backoff.remaining_s(100.0))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert "w1 crashed; the next one starts in 2 s at the earliest" in caplog.text
    assert (backoff.has_crashes, backoff.reason) == (True, "w1 crashed")
    assert backoff.remaining_s(160.0) == 0.0


def test_forgotten_crashes_shorten_the_next_pause_and_not_the_current_one() -> None:
    backoff = StartBackoff()
    backoff.record_fault(0.0, "w1 crashed")
    backoff.record_fault(0.0, "w2 crashed")
    backoff.forget_crashes()
    assert (backoff.has_crashes, backoff.remaining_s(0.0)) == (False, 2.0)
    backoff.record_fault(10.0, "w3 crashed")
    assert backoff.remaining_s(10.0) == 1.0


def test_reset_lets_the_next_worker_start_immediately() -> None:
    backoff = StartBackoff()
    backoff.failed_starts = 2
    backoff.record_fault(0.0, "w1 crashed")
    backoff.reset()
    assert (backoff.failed_starts, backoff.has_crashes, backoff.remaining_s(0.0)) == (0, False, 0)
