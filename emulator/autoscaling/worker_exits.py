"""Return the jobs of a worker that has ended, and decide what its end means."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from emulator.autoscaling.code_generations import CodeGenerations
from emulator.autoscaling.managed_worker import ManagedWorker
from emulator.autoscaling.managed_workers import ManagedWorkers
from emulator.autoscaling.program.missing_module import explain_missing_module
from emulator.autoscaling.program.worker_program import WorkerProgram
from emulator.autoscaling.start_backoff import StartBackoff
from emulator.autoscaling.start_failure import build_start_failure, is_fault_of_code
from emulator.autoscaling.unhealthy_workers import UnhealthyWorkers
from emulator.autoscaling.worker_exit import explain_failed_start, explain_worker_exit
from emulator.autoscaling.worker_watch import MAX_LAST_LINES
from emulator.runpod.job_response import worker_key
from emulator.runpod.worker_registry import WorkerRegistry
from jobs import JobStore

logger = logging.getLogger(__name__)

# How long the last lines of a worker that has ended are waited for.
_OUTPUT_TIMEOUT_S = 1.0
# A worker that has run for this long resets the backoff when it ends.
_BACKOFF_RESET_S = 30.0


class WorkerExits:
    """Returns the jobs of a worker that has ended, and decides what its end means.

    A worker that had to end is only forgotten. A crash delays the next start, unless the worker had
    taken a job, which may have ended it. A failed start of a user's handler is the failure of its
    newest code. Owned by the event loop; the autoscaler calls it in a tick.
    """

    def __init__(
        self,
        store: JobStore,
        worker_registry: WorkerRegistry,
        endpoint: str,
        workers: ManagedWorkers,
        unhealthy: UnhealthyWorkers,
        backoff: StartBackoff,
        generations: CodeGenerations,
    ) -> None:
        self._store = store
        self._worker_registry = worker_registry
        self._endpoint = endpoint
        self._workers = workers
        self._unhealthy = unhealthy
        self._backoff = backoff
        self._generations = generations

    async def handle(
        self, worker: ManagedWorker, code: int, program: WorkerProgram, now: float
    ) -> None:
        """Forget a worker that has ended with an exit code; it ran `program`."""
        self._workers.remove(worker)
        worker.process.kill_orphans()
        self._worker_registry.forget_worker(self._endpoint, worker.name)
        # A process that the worker has detached can keep its output open.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OUTPUT_TIMEOUT_S):
                await worker.process.wait()
        output = worker.log.last_printed(MAX_LAST_LINES)
        worker.close_log()
        reason = explain_worker_exit(code, output, worker.process.end_reason)
        await self._store.reclaim_jobs(
            worker_key(self._endpoint, worker.name), f"its worker {reason}"
        )
        if worker.ending_at is not None:
            logger.info("%s has ended", worker.name)
        elif worker.joined:
            self._handle_crash(worker, code, reason, now)
        else:
            self._handle_failed_start(worker, code, output, program, now)

    def _handle_crash(self, worker: ManagedWorker, code: int, reason: str, now: float) -> None:
        if now - worker.started_at > _BACKOFF_RESET_S or worker.has_taken_jobs:
            self._backoff.forget_crashes()
        self._unhealthy.add_ended(worker, code, reason)
        if worker.has_taken_jobs:
            # Its jobs may have ended it. How often each of them may do so is limited.
            logger.error("%s %s; the next one starts", worker.name, reason)
        else:
            self._backoff.record_fault(now, f"{worker.name} {reason}")

    def _handle_failed_start(
        self,
        worker: ManagedWorker,
        code: int,
        output: Sequence[str],
        program: WorkerProgram,
        now: float,
    ) -> None:
        end_reason = worker.process.end_reason
        reason = worker.never_starts or explain_failed_start(code, output, end_reason)
        if program.file is not None and (
            advice := explain_missing_module(output, program.file, program.python)
        ):
            reason = f"{reason}; {advice}"
        self._backoff.failed_starts += 1
        self._unhealthy.add_ended(worker, code, reason)
        if program.name is None:
            self._backoff.record_fault(now, f"{worker.name} {reason}")
            return
        generations = self._generations
        has_older = bool(generations.outdated)
        if has_older and generations.is_newest(worker) and not is_fault_of_code(code, output):
            generations.starts_alone = True
            logger.error(
                "%s %s; it is started again when the worker with the code before the change has "
                "ended, because that may still have what it needs",
                worker.name,
                reason,
            )
            return
        failure = build_start_failure(worker.name, program.name, reason, output)
        generations.record_failed_start(worker, code, self._backoff.failed_starts, failure)
        message = f"{failure.program} did not start: {failure.reason}"
        if has_older:
            logger.error("%s; the worker with the code before the change goes on", message)
        else:
            self._backoff.record_fault(now, message)
