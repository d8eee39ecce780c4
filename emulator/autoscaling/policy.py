"""RunPod's two scaling rules: how many workers an endpoint should have."""

from __future__ import annotations

import math
from dataclasses import dataclass

from emulator.settings.limits import ScalingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The jobs of an endpoint at one moment, without the jobs that its local worker runs.

    `waited_s` is the waiting time of the oldest queued job, 0 if none is queued.
    """

    queued: int = 0
    running: int = 0
    waited_s: float = 0.0


def count_missing(
    policy: ScalingPolicy,
    demand: Demand,
    workers: int,
    starting: int,
    last_start_s: float = math.inf,
) -> int:
    """Return how many workers to start.

    `starting` is how many of the `workers` have not requested a job yet, and `last_start_s` the
    time since the last worker was started.
    """
    target = policy.min_workers
    if policy.scaler == "count":
        target = max(target, math.ceil((demand.queued + demand.running) / policy.request_count))
    elif (
        demand.queued > starting
        and demand.waited_s >= policy.queue_delay_s
        and last_start_s >= policy.queue_delay_s
    ):
        target = max(target, workers + 1)
    return max(0, min(target, policy.max_workers) - workers)


def count_spare(policy: ScalingPolicy, demand: Demand, workers: int) -> int:
    """Return how many of the workers that have been idle for long enough may be stopped."""
    target = policy.min_workers
    if policy.scaler == "count":
        target = max(target, math.ceil((demand.queued + demand.running) / policy.request_count))
    elif demand.queued:
        return 0
    return max(0, workers - target)
