"""One job and the states it passes through."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class JobStatus(StrEnum):
    """RunPod's names for where a job is."""

    # Waiting for a worker.
    IN_QUEUE = "IN_QUEUE"
    # A worker has it.
    IN_PROGRESS = "IN_PROGRESS"
    # It ended with an output.
    COMPLETED = "COMPLETED"
    # It ended with an error.
    FAILED = "FAILED"

    @property
    def final(self) -> bool:
        """Whether nothing will change any more."""
        return self in (JobStatus.COMPLETED, JobStatus.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job at one moment; a change makes a new one. Times are seconds of a monotonic clock."""

    id: str
    input: Any
    queued_at: float
    status: JobStatus = JobStatus.IN_QUEUE
    started_at: float | None = None
    ended_at: float | None = None
    output: Any = None
    error: str | None = None

    @property
    def delay_ms(self) -> int | None:
        """How long it waited for a worker; None while it waits."""
        return None if self.started_at is None else _ms(self.started_at - self.queued_at)

    @property
    def execution_ms(self) -> int | None:
        """How long it ran; None before its end."""
        if self.started_at is None or self.ended_at is None:
            return None
        return _ms(self.ended_at - self.started_at)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
