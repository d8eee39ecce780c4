"""How many workers of an endpoint are wanted now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.autoscaling.policy import Demand, count_missing, count_spare
from emulator.runpod.job_response import worker_key
from emulator.settings.limits import ScalingPolicy
from jobs import JobStatus, JobStore


class Scaler:
    """Applies the scaling policy to the jobs of an endpoint and its workers of the newest code.

    Owned by the event loop; only the autoscaler calls it, which starts and ends the workers.
    """

    def __init__(
        self,
        store: JobStore,
        endpoint: str,
        policy: ScalingPolicy,
        local: str | None,
        wall_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._endpoint = endpoint
        self.policy = policy
        # The worker inside the server, whose jobs need no other one.
        self._local = worker_key(endpoint, local) if local is not None else None
        self._wall_clock = wall_clock
        self._last_start_at = -float("inf")
        # How many workers end and must have a successor.
        self._replacements = 0

    def record_start(self, now: float) -> None:
        """Note that a worker is being started."""
        self._last_start_at = now
        self._replacements = 0

    def request_replacement(self) -> None:
        """Want one more worker, whatever the demand, in the place of one that ends."""
        self._replacements += 1

    async def measure_demand(self) -> Demand:
        """Return the jobs that wait and run, without those of the local worker."""
        stats = await self._store.stats(self._endpoint)
        running = stats.counts.get(JobStatus.IN_PROGRESS, 0)
        if self._local is not None:
            running -= len(self._store.list_leased_jobs(self._local))
        oldest = stats.oldest_queued_at
        return Demand(
            queued=stats.counts.get(JobStatus.IN_QUEUE, 0),
            running=max(0, running),
            waited_s=0.0 if oldest is None else max(0.0, self._wall_clock() - oldest),
        )

    def pick_spare(
        self, workers: Sequence[ManagedWorker], demand: Demand, now: float
    ) -> list[ManagedWorker]:
        """Return the workers that are not needed any more, those idle for longest first."""
        idle = [
            worker
            for worker in workers
            if worker.joined and now - worker.busy_at >= self.policy.idle_timeout_s
        ]
        idle.sort(key=lambda worker: worker.busy_at)
        return idle[: count_spare(self.policy, demand, len(workers))]

    def count_missing(
        self, workers: Sequence[ManagedWorker], demand: Demand, now: float, at_least: int
    ) -> int:
        """Return how many workers to start: `at_least` so many, but not above the maximum."""
        starting = sum(not worker.joined for worker in workers)
        missing = count_missing(
            self.policy, demand, len(workers), starting, now - self._last_start_at
        )
        missing = max(missing, at_least, self._replacements)
        return min(missing, self.policy.max_workers - len(workers))
