"""The rules by which workers are missing or spare."""

from __future__ import annotations

import pytest

from emulator.autoscaling.policy import Demand, count_missing, count_spare
from emulator.settings.limits import ScalingPolicy


@pytest.mark.parametrize(
    ("demand", "workers", "starting", "since_s", "missing"),
    [
        (Demand(), 0, 0, 99, 0),
        (Demand(queued=1, waited_s=3.9), 0, 0, 99, 0),
        (Demand(queued=1, waited_s=4), 0, 0, 99, 1),
        (Demand(queued=9, waited_s=99), 1, 0, 99, 1),
        (Demand(queued=9, waited_s=99), 1, 1, 3.9, 0),
        (Demand(queued=9, waited_s=99), 1, 1, 4, 1),
        # The worker that starts will take the job.
        (Demand(queued=1, waited_s=99), 1, 1, 99, 0),
        (Demand(queued=9, waited_s=99), 3, 0, 99, 0),
        (Demand(running=9), 0, 0, 99, 0),
    ],
)
def test_delay_scaler_counts_missing_workers(
    demand: Demand, workers: int, starting: int, since_s: float, missing: int
) -> None:
    assert (
        count_missing(ScalingPolicy(max_workers=3), demand, workers, starting, since_s) == missing
    )


@pytest.mark.parametrize(
    ("demand", "workers", "missing", "spare"),
    [
        (Demand(), 0, 0, 0),
        (Demand(queued=1), 0, 1, 0),
        (Demand(queued=4), 0, 1, 0),
        (Demand(queued=4, running=1), 0, 2, 0),
        (Demand(queued=400), 1, 4, 0),
        (Demand(running=5), 3, 0, 1),
        (Demand(), 2, 0, 2),
    ],
)
def test_count_scaler_counts_missing_and_spare_workers(
    demand: Demand, workers: int, missing: int, spare: int
) -> None:
    scaling = ScalingPolicy(max_workers=5, scaler="count")
    assert count_missing(scaling, demand, workers, 0) == missing
    assert count_spare(scaling, demand, workers) == spare


def test_minimum_and_maximum_of_workers() -> None:
    scaling = ScalingPolicy(min_workers=2, max_workers=3, scaler="count", request_count=1)
    assert [count_missing(scaling, Demand(queued=n), 0, 0) for n in range(5)] == [2, 2, 2, 3, 3]
    assert count_missing(scaling, Demand(), 3, 0) == 0
    assert [count_spare(scaling, Demand(), n) for n in range(4)] == [0, 0, 0, 1]
    assert count_missing(ScalingPolicy(max_workers=0), Demand(queued=1, waited_s=99), 0, 0) == 0
    assert count_missing(ScalingPolicy(min_workers=1), Demand(), 0, 0) == 1
    # An idle worker takes the queued job.
    assert count_spare(ScalingPolicy(), Demand(queued=1), 1) == 0
