"""One job, the states it passes through, and what its sender may ask for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, TypeAlias

# A JSON value as its text in UTF-8: what clients send and workers answer is handed on as it is.
Json: TypeAlias = bytes


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
    # Its sender took it back.
    CANCELLED = "CANCELLED"
    # It ran for longer than its policy lets it.
    TIMED_OUT = "TIMED_OUT"

    @property
    def final(self) -> bool:
        """Whether nothing will change any more, but for a retry."""
        return self not in (JobStatus.IN_QUEUE, JobStatus.IN_PROGRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """RunPod's `policy`: how long a job may run, how long it may exist, whether others go first."""

    execution_timeout_ms: int = 600_000
    ttl_ms: int = 86_400_000
    low_priority: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What a sender hands in.

    `sync` is a job of `/runsync`: its sender gets the result and not an id. `extra` is what else
    the worker is to see in its job, as a JSON object, or nothing.
    """

    endpoint: str
    input: Json
    sync: bool = False
    policy: Policy = field(default_factory=Policy)
    webhook: str | None = None
    extra: Json = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job at one moment; a change makes a new one. Times are seconds since the epoch.

    `attempt` counts how often a worker was given it and is the fencing token of that worker: what
    comes under an older one is ignored. `losses` counts the workers it has lost since it was last
    sent; `progress` is what a worker has reported in between.
    """

    id: str
    endpoint: str
    input: Json
    created_at: float
    sync: bool = False
    policy: Policy = field(default_factory=Policy)
    webhook: str | None = None
    extra: Json = b""
    status: JobStatus = JobStatus.IN_QUEUE
    attempt: int = 0
    losses: int = 0
    retries: int = 0
    worker_id: str | None = None
    queued_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    progress: Json = b""
    output: Json | None = None
    error: str | None = None
    webhook_sent: bool = False

    @property
    def delay_ms(self) -> int | None:
        """How long it waited for a worker; None while it waits."""
        return None if self.started_at is None else _ms(self.started_at - self.queued_at)

    @property
    def execution_ms(self) -> int | None:
        """How long it ran; None before its end, and where it never ran."""
        if self.started_at is None or self.ended_at is None:
            return None
        return _ms(self.ended_at - self.started_at)

    @property
    def again(self) -> bool:
        """Whether it has run, or waits to run, once more: it was lost, or sent again."""
        if not (self.losses or self.retries):
            return False
        return self.attempt > 1 or self.status is JobStatus.IN_QUEUE

    @property
    def size(self) -> int:
        """How many bytes its parts have that are as long as their sender likes."""
        size = len(self.input) + len(self.extra) + len(self.progress)
        if self.output is not None:
            size += len(self.output)
        return size if self.error is None else size + len(self.error)

    def but(self, **changes: Any) -> Job:
        """Return this job with other values of some fields.

        A third of the time of `dataclasses.replace`, which asks each field how it is made: two of
        these are in every job's way.
        """
        job: Job = object.__new__(Job)
        for put, value in zip(_PUT, _values(self), strict=True):
            put(job, value)
        for name, value in changes.items():
            object.__setattr__(job, name, value)
        return job


_NAMES = [each.name for each in fields(Job)]
_values = attrgetter(*_NAMES)
_PUT = [getattr(Job, name).__set__ for name in _NAMES]


def new_id(*, sync: bool) -> str:
    """Return an id as RunPod's look: a random UUID, and where its job runs."""
    # A quarter of what `uuid.uuid4` takes.
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return (
        f"{'sync-' if sync else ''}{digits[:8]}-{digits[8:12]}-4{digits[13:16]}"
        f"-{variant}{digits[17:20]}-{digits[20:]}-u1"
    )


def _ms(seconds: float) -> int:
    # The clock may have been set back in between.
    return max(0, round(seconds * 1000))
