"""What a store knows of one endpoint."""

from __future__ import annotations

from jobs.memory.ready_queue import JobLine
from jobs.model import Job, JobStatus


class Endpoint:
    """The jobs of one endpoint: how many are in each state, and those that wait.

    All counts are of jobs that are kept: they are the same after a restart, and what is forgotten
    is in none of them. `totals` are those of all endpoints together, which share them.
    """

    __slots__ = ("_totals", "counts", "line", "retried")

    def __init__(self, totals: dict[JobStatus, int]) -> None:
        self._totals = totals
        self.line = JobLine()
        self.counts = dict.fromkeys(JobStatus, 0)
        self.retried = 0

    def count(self, job: Job, change: int) -> None:
        """Count a job as it is, or no more."""
        self.counts[job.status] += change
        self._totals[job.status] += change
        if job.again:
            self.retried += change

    @property
    def idle(self) -> bool:
        """Whether it has no jobs, and nobody waits for any."""
        return not self.line.watched and not any(self.counts.values())
