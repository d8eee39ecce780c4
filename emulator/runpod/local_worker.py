"""The in-process worker of the default endpoint: the pipeline, no SDK in between."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Literal

import orjson
from structlog.contextvars import bind_contextvars

from emulator.runpod.job_response import worker_key
from emulator.runpod.worker_registry import Fleet
from engine import AnyEngine, EngineState, Priority, Slot
from engine.errors import EngineError
from handler.errors import ResultTooLarge
from handler.job import JobHandler
from handler.job_result import Interruption, JobResult
from jobs import Job, JobStore, StoreFull, StoreUnavailable
from jobs.failpoints import failpoint

logger = logging.getLogger(__name__)

NAME = "local"
# What the disk refuses is offered again after so long.
_AGAIN_S = 1.0
_STOP_POLL_S = 60.0
# The store ends a job in time, as TIMED_OUT; the end of its generation would be FAILED.
_LATER_S = 10.0
# Jobs that have their answer and wait for the disk, beside those that run: their slots are free
# again and should not stand idle, but what cannot be saved must not pile up either.
_MOST_UNSAVED = 64


class LocalWorker:
    """Leases a job only when the engine has granted it a slot, so waiting is never execution.

    One task waits for a job, then for a slot, then takes the job and starts a task that runs it.
    It takes no job while the engine has no loaded model, and none any more when the engine is dead:
    they stay in the queue.

    A job that was running when the engine crashed goes back to the queue as a lost one does, and
    fails after `max_losses`. Before its last try it runs alone, so that of the jobs that ran side
    by side at the crashes only the one that causes them fails. A job that was interrupted for
    another reason goes back without that being counted.

    A job that asks to stream is streamed in either `mode`; the mode decides whether its output is
    one JSON or the list of its chunks. `enter` is called with each job's id in the job's own task.
    With `policy_decides` a job may run as long as its own policy allows, whatever the engine's
    limit for other requests. Owned by the event loop.
    """

    def __init__(
        self,
        store: JobStore,
        jobs: JobHandler,
        engine: AnyEngine,
        fleet: Fleet,
        endpoint: str,
        mode: Literal["aggregate", "generator"],
        enter: Callable[[str], object] = lambda job_id: None,
        *,
        policy_decides: bool = False,
        max_losses: int = 3,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._engine = engine
        self._fleet = fleet
        self._endpoint = endpoint
        self._as_list = mode == "generator"
        self._enter = enter
        self._policy_decides = policy_decides
        self._max_losses = max_losses
        self._key = worker_key(endpoint, NAME)
        self._running: dict[asyncio.Task[None], Job] = {}
        self._returning: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._taker: asyncio.Task[None] | None = None
        self._stopper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin taking jobs."""
        self._taker = asyncio.create_task(self._take_all())
        self._stopper = asyncio.create_task(self._stop_told())

    async def _take_all(self) -> None:
        self._fleet.show_local(self._endpoint, self._slots)
        while True:
            try:
                await self._take()
            except EngineError as error:
                logger.error("no more jobs are taken, they stay in the queue: %s", error)
                return
            except Exception:
                logger.exception("the local worker could not take a job")
                await asyncio.sleep(_AGAIN_S)

    async def _take(self) -> None:
        """Wait for a job and a slot, and start the job. Raises EngineUnavailable."""
        # First of all, so that an engine that cannot load its model is noticed without a job.
        await self._engine.ready()
        await self._store.wait_for_job(self._endpoint)
        while len(self._running) >= self._engine.slots + _MOST_UNSAVED:
            self._room.clear()
            await self._room.wait()
        alone = self._runs_alone()
        slot = await self._engine.reserve(Priority.JOB, exclusive=alone)
        jobs: list[Job] = []
        try:
            # Meanwhile one may have come back to the front of the queue.
            if alone or not self._runs_alone():
                jobs = await self._store.receive(self._endpoint, self._key, lease_s=math.inf)
        finally:
            # It was cancelled meanwhile, or another worker has it.
            if not jobs:
                slot.release()
        for job in jobs:
            task = asyncio.create_task(self._run(job, slot))
            self._running[task] = job
            # Not in the task itself: one that is cancelled before its first step runs none of it.
            task.add_done_callback(lambda task: self._over(task, slot))

    def _runs_alone(self) -> bool:
        """Return whether the next job fails if it is lost once more: it may be what kills."""
        job = self._store.peek_job(self._endpoint)
        return job is not None and 0 < job.lost_attempts == self._max_losses - 1

    async def _run(self, job: Job, slot: Slot) -> None:
        # All that is logged of it from here on says so: the task is its own.
        bind_contextvars(job_id=job.id)
        self._enter(job.id)
        await self._end(job, await self._result(job, slot))

    def _over(self, task: asyncio.Task[None], slot: Slot) -> None:
        job = self._running.pop(task)
        slot.release()
        if task.cancelled():
            # It is over where it was stopped for that, and else another's turn.
            back = asyncio.create_task(self._give_back(job))
            self._returning.add(back)
            back.add_done_callback(self._returning.discard)
        self._room.set()

    async def _give_back(self, job: Job) -> None:
        await self._store.nack(job.id, job.attempt)

    async def _result(self, job: Job, slot: Slot) -> JobResult:
        try:
            extra = orjson.loads(job.extra) if job.extra else {}
            limit_s = None
            if self._policy_decides:
                limit_s = job.policy.execution_timeout_ms / 1000 + _LATER_S
            told = {**extra, "id": job.id, "input": orjson.loads(job.input)}

            async def put(chunk: bytes) -> None:
                try:
                    await self._store.append_chunks(job.id, job.attempt, [chunk])
                except StoreFull as error:
                    raise ResultTooLarge(str(error)) from None

            return await self._jobs.run_encoded(told, slot, limit_s, put, as_list=self._as_list)
        except Exception:
            logger.exception("the local worker failed on job %s", job.id)
            return JobResult(error="the worker failed; see its log")
        finally:
            # A job that was refused has not used it, and need not keep it until it is saved.
            slot.release()

    async def _end(self, job: Job, result: JobResult) -> None:
        failpoint("local-ran")
        if result.interruption is Interruption.NO_ENGINE and self._engine.failure is None:
            # It would be leased again at once where other models are loaded.
            await asyncio.sleep(_AGAIN_S)
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
            await asyncio.sleep(_AGAIN_S)

    async def _stop_told(self) -> None:
        """Stop what is cancelled or has run for too long."""
        while True:
            told = await self._store.receive_stops(self._key, _STOP_POLL_S)
            for task, job in self._running.items():
                if job.id in told:
                    task.cancel()

    def _slots(self) -> tuple[int, int, int]:
        """Return how many are idle, running and unhealthy."""
        running = len(self._running)
        others = max(0, self._engine.slots - running)
        if self._engine.state is EngineState.DEAD:
            return 0, running, others
        return others, running, 0

    async def drain(self, limit_s: float) -> None:
        """Take no more jobs, and wait for those that run; what runs on goes back to the queue."""
        await _cancelled(self._taker)
        if self._running:
            await asyncio.wait(set(self._running), timeout=limit_s)
        await self.close()

    async def close(self) -> None:
        """Stop taking jobs; those that run go back to the queue."""
        await _cancelled(self._taker, self._stopper)
        await _cancelled(*self._running)
        await asyncio.gather(*self._returning, return_exceptions=True)


async def _cancelled(*tasks: asyncio.Task[None] | None) -> None:
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    await asyncio.gather(*there, return_exceptions=True)
