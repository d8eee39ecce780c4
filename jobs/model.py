"""Jobs: their states, what a client may ask for, and the limits of a store."""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

# A JSON value as UTF-8 text. Inputs and outputs are passed on without being parsed.
Json: TypeAlias = bytes


class JobStatus(StrEnum):
    """The status of a job, with RunPod's names."""

    # Waits for a worker.
    IN_QUEUE = "IN_QUEUE"
    # Leased to a worker.
    IN_PROGRESS = "IN_PROGRESS"
    # Ended with an output.
    COMPLETED = "COMPLETED"
    # Ended with an error.
    FAILED = "FAILED"
    # Cancelled by the client.
    CANCELLED = "CANCELLED"
    # Ran for longer than its policy allows.
    TIMED_OUT = "TIMED_OUT"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended; only a retry changes a final status."""
        return self not in (JobStatus.IN_QUEUE, JobStatus.IN_PROGRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """RunPod's `policy`: how long a job may run, how long it may exist, and its priority."""

    execution_timeout_ms: int = 600_000
    ttl_ms: int = 86_400_000
    low_priority: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job that a client submits.

    `sync` marks a job of `/runsync`: the client receives its result instead of its id. `extra` is a
    JSON object with further fields for the worker's job, or empty.
    """

    endpoint: str
    input: Json
    sync: bool = False
    policy: Policy = field(default_factory=Policy)
    webhook: str | None = None
    extra: Json = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An immutable snapshot of a job. Times are seconds since the epoch.

    `attempt` counts how often the job was leased. It is the fencing token of the worker: messages
    of an earlier attempt are ignored. `lost_attempts` counts the attempts that lost their worker
    since the job was created or retried. `progress` is the latest progress that the worker sent.
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
    lost_attempts: int = 0
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
        """How long the job waited for a worker; None while it waits."""
        return None if self.started_at is None else _milliseconds(self.started_at - self.queued_at)

    @property
    def execution_ms(self) -> int | None:
        """How long the job ran; None until it ends, and if it never ran."""
        if self.started_at is None or self.ended_at is None:
            return None
        return _milliseconds(self.ended_at - self.started_at)

    @property
    def was_retried(self) -> bool:
        """Whether the job runs, ran or waits once more after a lost worker or a client's retry."""
        if not (self.lost_attempts or self.retries):
            return False
        return self.attempt > 1 or self.status is JobStatus.IN_QUEUE

    @property
    def size(self) -> int:
        """The size in bytes of the fields whose length clients and workers choose."""
        size = len(self.input) + len(self.extra) + len(self.progress)
        if self.output is not None:
            size += len(self.output)
        return size if self.error is None else size + len(self.error)

    def replace(self, **changes: Any) -> Job:
        """Return a copy of this job with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a store holds, for how long, and how often a job may lose its worker.

    The defaults are RunPod's: it retains the result of a `/run` for half an hour and that of a
    `/runsync` for a minute. A job fails when it has lost `max_losses` workers.
    """

    max_jobs: int = 100_000
    max_bytes: int = 2_000_000_000
    max_stream_bytes: int = 100_000_000
    retention_s: float = 30 * 60
    sync_retention_s: float = 60
    max_losses: int = 3


def new_id(*, sync: bool) -> str:
    """Return a job id in RunPod's format: a random UUID, a prefix for sync jobs, and a suffix."""
    return f"{'sync-' if sync else ''}{uuid.uuid4()}-u1"


def _milliseconds(seconds: float) -> int:
    # Not negative, even if the system clock was set back in between.
    return max(0, round(seconds * 1000))
