"""Notice workers that take long to start, never will, or have become silent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.autoscaling.managed_workers import ManagedWorkers
from emulator.autoscaling.start_watch import (
    NAMED_AFTER_S,
    START_TIMEOUT_VARIABLE,
    describe_long_start,
    explain_no_worker,
    serves_http,
)
from emulator.autoscaling.unhealthy_workers import UnhealthyWorkers
from emulator.runpod.remote_worker import RemoteWorker

# As many as a long traceback has.
MAX_LAST_LINES = 60
# A worker that lives and has no job asks for one again within seconds.
_MAX_SILENT_S = 30.0


class WorkerWatch:
    """Looks at each worker whose process runs, and kills or replaces it if it does not work.

    `replace` lets a worker end and wants a successor for it. Owned by the event loop; the
    autoscaler calls it in each tick.
    """

    def __init__(
        self,
        workers: ManagedWorkers,
        unhealthy: UnhealthyWorkers,
        replace: Callable[[ManagedWorker, float], None],
    ) -> None:
        self._workers = workers
        self._unhealthy = unhealthy
        self._replace = replace

    def check(
        self,
        worker: ManagedWorker,
        registration: RemoteWorker | None,
        passed_s: float,
        now: float,
    ) -> None:
        """Check a worker; `passed_s` is the time since the last check."""
        if self._workers.has_jobs(worker):
            worker.busy_at = now
        if worker.ending_at is not None:
            is_late = now - worker.ending_at > worker.exit_timeout_s
            if is_late and not self._workers.has_jobs(worker):
                worker.process.kill()
        elif not worker.joined:
            self._check_start(worker, now)
        elif registration is not None and (
            why := registration.find_unstopped_job(time.monotonic())
        ):
            worker.note(f"still runs a job that {why}, and is stopped", logging.WARNING)
            self._replace(worker, now)
            if not self._workers.has_jobs(worker):
                # Its handler blocks the SDK, which could not handle a SIGTERM.
                worker.process.kill()
        elif registration is not None and registration.requests_replacement:
            worker.note("asked to be replaced")
            self._replace(worker, now)
        else:
            self._check_silence(worker, registration, passed_s, now)

    def _check_start(self, worker: ManagedWorker, now: float) -> None:
        """Name a worker that takes long to ask for its first job; kill it if it never will."""
        if worker.never_starts is not None:
            return
        age_s = now - worker.started_at
        output = worker.log.last_printed(MAX_LAST_LINES)
        worker.never_starts = explain_no_worker(output)
        if age_s > worker.start_timeout_s:
            worker.never_starts = (
                f"was killed because it did not ask for a job within {worker.start_timeout_s:g} s "
                f"({START_TIMEOUT_VARIABLE})"
            )
        if worker.never_starts is not None:
            worker.note(worker.never_starts, logging.ERROR)
            worker.process.kill()
        elif age_s >= NAMED_AFTER_S and worker.long_start is None:
            worker.long_start = describe_long_start(output, age_s)
            worker.note(worker.long_start, logging.WARNING)
            if serves_http(output):
                self._unhealthy.warn(worker, f"it {worker.long_start}")

    def _check_silence(
        self,
        worker: ManagedWorker,
        registration: RemoteWorker | None,
        passed_s: float,
        now: float,
    ) -> None:
        """Replace a worker that has no job and does not ask for one any more."""
        asks = registration is not None and not registration.is_shutting_down(time.monotonic())
        is_silent = not asks and not self._workers.has_jobs(worker)
        worker.silent_s = worker.silent_s + passed_s if is_silent else 0.0
        if worker.silent_s <= _MAX_SILENT_S:
            return
        reason = f"has no job and has not asked for one in {_MAX_SILENT_S:g} s"
        worker.note(f"{reason}, and is replaced", logging.WARNING)
        self._unhealthy.add(worker, f"it {reason}")
        self._replace(worker, now)
        worker.process.kill()
