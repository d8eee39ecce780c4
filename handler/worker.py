"""The RunPod worker: the only file that imports the SDK."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import runpod
from runpod.serverless.modules.worker_state import JobsProgress
from structlog.contextvars import bind_contextvars

from engine import AnyEngine, EngineState
from engine.errors import EngineError
from handler.attempts import Attempts
from handler.job import Interruption, JobHandler, JobResult
from handler.limits import wire_size

logger = logging.getLogger(__name__)

# How long a worker with a dead engine waits for its last results to be posted before it exits.
_LAST_POSTS_S = 30.0
_POLL_S = 0.1
# Set on RunPod and by the local server.
_TAKES_JOBS = "RUNPOD_WEBHOOK_GET_JOB"
_SERVES_API = "--rp_serve_api"

Handler = Callable[[dict[str, Any]], Awaitable[Any]]
GeneratorHandler = Callable[[dict[str, Any]], AsyncGenerator[Any, None]]


class DeadEngineExit:
    """Ends the worker with exit code 1 when its engine is dead, so that RunPod replaces it.

    Jobs that the engine could not serve are not answered: they go back to the queue with the
    worker's end. Owned by the SDK's event loop.
    """

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._held = 0
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Begin to watch; harmless the second time."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def hold(self) -> None:
        """Wait with a job that cannot be served until the worker has ended."""
        self.watch()
        self._held += 1
        try:
            await asyncio.Event().wait()
        finally:
            self._held -= 1

    async def _watch(self) -> None:
        failure = await self._engine.wait_until_dead()
        logger.error("the worker ends with exit code 1: %s", failure.message)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LAST_POSTS_S
        # The SDK's tracker has no event to wait for.
        while _jobs_in_progress() > self._held and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        # The SDK's heartbeat would go on for ever and tell the platform that this worker is alive.
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(1)


def _jobs_in_progress() -> int:
    """Return how many jobs the SDK has taken and not reported yet."""
    progress: Any = JobsProgress
    return int(progress().get_job_count())


def make_handler(jobs: JobHandler, engine: AnyEngine, end: DeadEngineExit | None) -> Handler:
    """Return the function for STREAM_MODE=aggregate: a plain async one, one JSON out.

    Without `end`, jobs that a dead engine cannot serve fail with the reason.
    """

    async def handler(job: dict[str, Any]) -> Any:
        # The SDK runs each job in a task of its own.
        bind_contextvars(job_id=job.get("id"))
        attempts, slot = Attempts(engine), None
        while True:
            try:
                result = await jobs.result(job, slot, size_of=wire_size)
            finally:
                if slot is not None:
                    slot.release()
            if result.interruption is None:
                return jobs.sdk_output(result)
            if jobs.is_dead:
                if end is None:
                    return jobs.sdk_output(result)
                await end.hold()
            reason = result.reason or ""
            if not attempts.may_repeat(result.interruption):
                return jobs.sdk_output(attempts.failure(reason))
            logger.warning("the job runs again: %s", reason)
            slot = await attempts.next_slot()

    return handler


def make_generator_handler(
    jobs: JobHandler, engine: AnyEngine, end: DeadEngineExit | None, keep: Callable[[bool], None]
) -> GeneratorHandler:
    """Return the function for STREAM_MODE=generator.

    A real async generator function: the SDK looks at the function itself, and a plain one that
    returns a generator would leave its job in progress for ever. `keep` is called before each yield
    with whether the SDK is to keep it for the job's result. A job that has yielded nothing yet
    runs again if the engine crashes; what was yielded cannot be taken back.
    """

    async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        bind_contextvars(job_id=job.get("id"))
        attempts, slot = Attempts(engine), None
        while True:
            reason: str | None = None
            runs_again = False

            def interrupted(kind: Interruption, why: str) -> bool:
                nonlocal reason, runs_again
                reason, runs_again = why, attempts.may_repeat(kind)
                return True

            outputs = jobs.stream(job, slot, keep=keep, interrupted=interrupted)
            try:
                async for output in outputs:
                    if isinstance(output, dict):
                        # The SDK ignores it in what a generator yields; the worker exits instead.
                        output.pop("refresh_worker", None)
                    yield output
            finally:
                await outputs.aclose()
                if slot is not None:
                    slot.release()
            if reason is None:
                return
            if jobs.is_dead and end is not None:
                await end.hold()
            if jobs.is_dead or not runs_again:
                keep(True)
                failure = JobResult(error=reason) if jobs.is_dead else attempts.failure(reason)
                yield {"error": failure.error}
                return
            logger.warning("the job runs again: %s", reason)
            slot = await attempts.next_slot()

    return handler


def serve(jobs: JobHandler, engine: AnyEngine, mode: str) -> None:
    """Take jobs from RunPod until told to stop; SIGTERM lets running ones finish first.

    A worker whose model cannot be loaded takes no job: the SDK's fitness check ends it with exit
    code 1 and reports it as unhealthy. One whose engine dies later ends itself.
    """
    # The SDK's own test server answers its callers directly, and has no queue behind it.
    takes_jobs = bool(os.environ.get(_TAKES_JOBS)) and _SERVES_API not in sys.argv[1:]
    end = DeadEngineExit(engine) if takes_jobs else None

    def concurrency(_current: int) -> int:
        if end is not None:
            end.watch()
        if engine.state is not EngineState.READY and not _jobs_in_progress():
            # The SDK then takes no job, and asks again after a second. It must not be told 0
            # while it has jobs: those that it has not started yet would wait for ever.
            return 0
        # One more than there are slots: the SDK asks for its next job only once a second while it
        # is full, so a slot would stand idle between jobs.
        return engine.slots + 1

    config: dict[str, Any] = {"concurrency_modifier": concurrency}

    def keep(kept: bool) -> None:
        # The SDK looks at this key as soon as it has an output, before anything else can run.
        config["return_aggregate_stream"] = kept

    @runpod.serverless.register_fitness_check
    async def model_is_loaded() -> None:
        try:
            await engine.ready()
        except EngineError as error:
            logger.error("the worker takes no job: %s", error.message)
            raise RuntimeError(error.message) from None
        finally:
            # The SDK runs its checks on a loop of their own.
            engine.detach()

    if mode == "generator":
        config["handler"] = make_generator_handler(jobs, engine, end, keep)
    else:
        config["handler"] = make_handler(jobs, engine, end)
    runpod.serverless.start(config)
