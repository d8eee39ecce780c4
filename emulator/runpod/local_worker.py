"""The in-process worker of the default endpoint, which runs jobs without the SDK."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Literal

import orjson
from structlog.contextvars import bind_contextvars

from common.failpoints import failpoint
from emulator.runpod.job_response import LOCAL_WORKER_NAME, worker_key
from emulator.runpod.worker_registry import WorkerRegistry
from engine import AnyEngine, EngineState, Priority, Slot
from engine.errors import EngineError
from handler.errors import ResultTooLarge
from handler.job.job_handler import JobHandler
from handler.job.job_result import Interruption, JobResult
from jobs import Job, JobStore, StoreFull, StoreUnavailable

logger = logging.getLogger(__name__)

# The delay before a failed operation is retried, such as a write to a full disk.
_RETRY_DELAY_S = 1.0
_STOP_POLL_S = 60.0
# Added to a job's own timeout, so that the store ends the job first, as TIMED_OUT. A timeout of its
# generation would make it FAILED.
_TIMEOUT_MARGIN_S = 10.0
# The maximum number of jobs that have a result but wait for the disk. Their slots are free and can
# run other jobs, but unsaved results must not accumulate without a limit.
_MAX_UNSAVED_JOBS = 64


class LocalWorker:
    """Leases a job only when it has an engine slot, so that the execution time excludes waiting.

    One task waits for a job, then for a slot, then leases the job and starts a task that runs it.
    While the engine has no loaded model, or when it is dead, jobs stay in the queue.

    A job that was running when the engine crashed is queued again as a lost attempt, and fails
    after `max_lost_attempts`. Its last attempt runs without other jobs, so that of the jobs that
    ran during the crashes only the one that causes them fails. A job that was interrupted for
    another reason is queued again, and the attempt does not count as lost.

    A job that asks to stream is streamed in either `mode`; the mode decides whether its output is
    one JSON value or the list of its chunks. `on_job_start` is called with each job's id, in the
    job's own task. With `use_policy_timeout` a job may run as long as its own policy allows,
    whatever the engine's limit for other requests. Owned by the event loop.
    """

    def __init__(
        self,
        store: JobStore,
        job_handler: JobHandler,
        engine: AnyEngine,
        worker_registry: WorkerRegistry,
        endpoint: str,
        mode: Literal["aggregate", "generator"],
        on_job_start: Callable[[str], object] = lambda job_id: None,
        *,
        use_policy_timeout: bool = False,
        max_lost_attempts: int = 3,
        retry_delay_s: float = _RETRY_DELAY_S,
    ) -> None:
        self._store = store
        self._job_handler = job_handler
        self._engine = engine
        self._worker_registry = worker_registry
        self._endpoint = endpoint
        self._as_list = mode == "generator"
        self._on_job_start = on_job_start
        self._use_policy_timeout = use_policy_timeout
        self._max_lost_attempts = max_lost_attempts
        self._retry_delay_s = retry_delay_s
        self._key = worker_key(endpoint, LOCAL_WORKER_NAME)
        self._running: dict[asyncio.Task[None], Job] = {}
        self._nack_tasks: set[asyncio.Task[None]] = set()
        self._has_capacity = asyncio.Event()
        self._take_task: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start taking jobs."""
        self._take_task = asyncio.create_task(self._take_jobs_forever())
        self._stop_task = asyncio.create_task(self._stop_jobs_forever())

    async def _take_jobs_forever(self) -> None:
        self._worker_registry.set_local_slots(self._endpoint, self._count_slots)
        while True:
            try:
                await self._start_next_job()
            except EngineError as error:
                logger.error("no more jobs are taken, they stay in the queue: %s", error)
                return
            except Exception:
                logger.exception("the local worker could not take a job")
                await asyncio.sleep(self._retry_delay_s)

    async def _start_next_job(self) -> None:
        """Wait for a job and a slot, and start the job. Raises EngineUnavailable."""
        # Wait for the engine first: a model that cannot be loaded is then noticed without a job.
        await self._engine.ready()
        await self._store.wait_for_job(self._endpoint)
        while len(self._running) >= self._engine.slots + _MAX_UNSAVED_JOBS:
            self._has_capacity.clear()
            await self._has_capacity.wait()
        is_exclusive = self._needs_exclusive_slot()
        slot = await self._engine.reserve(Priority.JOB, exclusive=is_exclusive)
        jobs: list[Job] = []
        try:
            # The next job may be another one now, which must run without other jobs.
            if is_exclusive or not self._needs_exclusive_slot():
                jobs = await self._store.receive(self._endpoint, self._key, lease_s=math.inf)
        finally:
            # The job was cancelled meanwhile, or another worker has taken it.
            if not jobs:
                slot.release()
        for job in jobs:
            task = asyncio.create_task(self._run(job, slot))
            self._running[task] = job
            # A task that is cancelled before it starts never runs its `finally`.
            task.add_done_callback(lambda task: self._on_task_done(task, slot))

    def _needs_exclusive_slot(self) -> bool:
        """Return whether the next job is in its last attempt: it may be what crashes the engine."""
        job = self._store.peek_job(self._endpoint)
        return job is not None and 0 < job.lost_attempts == self._max_lost_attempts - 1

    async def _run(self, job: Job, slot: Slot) -> None:
        # All later log lines of this task have the job's id.
        bind_contextvars(job_id=job.id)
        self._on_job_start(job.id)
        await self._save_result(job, await self._run_handler(job, slot))

    def _on_task_done(self, task: asyncio.Task[None], slot: Slot) -> None:
        job = self._running.pop(task)
        slot.release()
        if task.cancelled():
            # If the job has not ended, it is queued again.
            nack_task = asyncio.create_task(self._nack(job))
            self._nack_tasks.add(nack_task)
            nack_task.add_done_callback(self._nack_tasks.discard)
        self._has_capacity.set()

    async def _nack(self, job: Job) -> None:
        await self._store.nack(job.id, job.attempt)

    async def _run_handler(self, job: Job, slot: Slot) -> JobResult:
        try:
            extra = orjson.loads(job.extra) if job.extra else {}
            limit_s = None
            if self._use_policy_timeout:
                limit_s = job.policy.execution_timeout_ms / 1000 + _TIMEOUT_MARGIN_S
            payload = {**extra, "id": job.id, "input": orjson.loads(job.input)}

            async def append_chunk(chunk: bytes) -> None:
                try:
                    await self._store.append_chunks(job.id, job.attempt, [chunk])
                except StoreFull as error:
                    raise ResultTooLarge(str(error)) from None

            return await self._job_handler.run_encoded(
                payload, slot, limit_s, append_chunk, as_list=self._as_list
            )
        except Exception:
            logger.exception("the local worker failed on job %s", job.id)
            return JobResult(error="the worker failed; see its log")
        finally:
            # A refused job has not used its slot. Release it now, not after the result is saved.
            slot.release()

    async def _save_result(self, job: Job, result: JobResult) -> None:
        failpoint("local-ran")
        if result.interruption is Interruption.NO_ENGINE and self._engine.failure is None:
            # With other models loaded, the job would be leased again at once.
            await asyncio.sleep(self._retry_delay_s)
        while True:
            try:
                if result.interruption is None:
                    output, error = result.output, result.error
                    await self._store.ack(job.id, job.attempt, output=output, error=error)
                else:
                    crashed = result.interruption is Interruption.CRASH
                    await self._store.nack(job.id, job.attempt, result.reason if crashed else None)
                failpoint("local-ended")
                return
            except StoreUnavailable as unavailable:
                logger.error("the result of job %s has to wait: %s", job.id, unavailable)
            except Exception:
                logger.exception("the result of job %s was not taken", job.id)
            await asyncio.sleep(self._retry_delay_s)

    async def _stop_jobs_forever(self) -> None:
        """Stop the jobs that were cancelled or have timed out."""
        while True:
            job_ids = await self._store.receive_stops(self._key, _STOP_POLL_S)
            for task, job in self._running.items():
                if job.id in job_ids:
                    task.cancel()

    def _count_slots(self) -> tuple[int, int, int]:
        """Return the numbers of idle, running and unhealthy slots."""
        running = len(self._running)
        not_running = max(0, self._engine.slots - running)
        if self._engine.state in (EngineState.DEAD, EngineState.RESTARTING):
            return 0, running, not_running
        return not_running, running, 0

    async def drain(self, limit_s: float) -> None:
        """Stop taking jobs and wait up to `limit_s` for running jobs; queue the others again."""
        await _cancel_and_wait(self._take_task)
        if self._running:
            await asyncio.wait(set(self._running), timeout=limit_s)
        await self.close()

    async def close(self) -> None:
        """Stop taking jobs, and queue the running jobs again."""
        await _cancel_and_wait(self._take_task, self._stop_task)
        await _cancel_and_wait(*self._running)
        await asyncio.gather(*self._nack_tasks, return_exceptions=True)


async def _cancel_and_wait(*tasks: asyncio.Task[None] | None) -> None:
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)
