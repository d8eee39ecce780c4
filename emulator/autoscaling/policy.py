"""How many workers an endpoint should have: RunPod's two rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """An endpoint at one moment, without what its local worker runs.

    `waited_s` is of the job that has waited longest, 0 where none waits.
    """

    queued: int = 0
    running: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """RunPod's settings of an endpoint's workers, with RunPod's defaults.

    `delay` adds a worker when a job has waited for `queue_delay_s`, and another when one still has
    after as long again. `count` has a worker for every `request_count` jobs, waiting and running.
    """

    least: int = 0
    most: int = 3
    scaler: Literal["delay", "count"] = "delay"
    queue_delay_s: float = 4.0
    request_count: int = 4
    idle_timeout_s: float = 5.0

    def missing(
        self, demand: Demand, workers: int, starting: int, last_start_s: float = math.inf
    ) -> int:
        """Return how many workers to start.

        `workers` are those there are, of which `starting` have not yet asked for a job; the last
        was started `last_start_s` ago.
        """
        wanted = self.least
        if self.scaler == "count":
            wanted = max(wanted, math.ceil((demand.queued + demand.running) / self.request_count))
        elif (
            demand.queued > starting
            and demand.waited_s >= self.queue_delay_s
            and last_start_s >= self.queue_delay_s
        ):
            wanted = max(wanted, workers + 1)
        return max(0, min(wanted, self.most) - workers)

    def spare(self, demand: Demand, workers: int) -> int:
        """Return how many workers may go, of those that have been idle for long enough."""
        wanted = self.least
        if self.scaler == "count":
            wanted = max(wanted, math.ceil((demand.queued + demand.running) / self.request_count))
        elif demand.queued:
            return 0
        return max(0, workers - wanted)
