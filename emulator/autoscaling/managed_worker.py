"""The state of one worker process that the autoscaler has started."""

from __future__ import annotations

import logging

from emulator.autoscaling.worker_exit import describe_worker_exit
from emulator.autoscaling.worker_log import WorkerLog
from emulator.autoscaling.worker_process import Process

logger = logging.getLogger(__name__)


class ManagedWorker:
    """One worker process of the autoscaler, which owns it. Times are of the monotonic clock."""

    __slots__ = (
        "busy_at",
        "ending_at",
        "exit_timeout_s",
        "generation",
        "has_taken_jobs",
        "joined",
        "log",
        "long_start",
        "name",
        "never_starts",
        "process",
        "replaces",
        "silent_s",
        "start_timeout_s",
        "started_at",
    )

    def __init__(
        self,
        name: str,
        process: Process,
        log: WorkerLog,
        now: float,
        generation: int,
        start_timeout_s: float,
        replaces: str | None = None,
    ) -> None:
        self.name = name
        self.process = process
        self.log = log
        # Which state of the code it runs: each reload starts another generation.
        self.generation = generation
        # How long it may take until it asks for a job.
        self.start_timeout_s = start_timeout_s
        # The name of the worker that crashed or did not start, in whose place it was started.
        self.replaces = replaces
        self.started_at = now
        # When it last had a job, or requested its first one.
        self.busy_at = now
        # Whether it has requested a job, and whether it got one.
        self.joined = False
        self.has_taken_jobs = False
        # For how long it has had no job and not asked for one, since it asked for its first.
        self.silent_s = 0.0
        # The predicate of the log line about it when its start took long.
        self.long_start: str | None = None
        # Why it was killed although it had not asked for a job yet, as a predicate.
        self.never_starts: str | None = None
        # When it was sent SIGTERM, and how long it may run after that without jobs.
        self.ending_at: float | None = None
        self.exit_timeout_s = 0.0

    def note(self, event: str, level: int = logging.INFO) -> None:
        """Write what happens to it into its log and the server's."""
        self.log.append("system", f"{self.name} {event}")
        logger.log(level, "%s %s", self.name, event)

    def close_log(self) -> None:
        """Write how it ended as the last line of its log."""
        if (code := self.process.returncode) is not None:
            ended = self.process.end_reason or describe_worker_exit(code)
            self.log.append("system", f"{self.name} {ended}")
        self.log.close()
