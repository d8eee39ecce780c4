"""Run the RunPod worker. No other module imports the SDK."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import runpod
from runpod.serverless.modules.worker_state import JobsProgress
from structlog.contextvars import bind_contextvars

from engine import AnyEngine, EngineState
from engine.errors import EngineError
from handler.delivery.limits import sdk_size_bytes
from handler.job.attempts import Attempts
from handler.job.job_handler import JobHandler
from handler.job.job_result import Interruption

logger = logging.getLogger(__name__)

# How long a worker with a dead engine waits for its last results to be posted before it exits.
_FINAL_POSTS_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.1
# Environment variable that RunPod and the local server set for their workers.
_JOB_TAKE_URL = "RUNPOD_WEBHOOK_GET_JOB"
_SERVE_API_OPTION = "--rp_serve_api"

Handler = Callable[[dict[str, Any]], Awaitable[Any]]
GeneratorHandler = Callable[[dict[str, Any]], AsyncGenerator[Any, None]]


class DeadEngineExit:
    """Ends the worker with exit code 1 when its engine is dead, so that RunPod replaces it.

    Jobs that the engine could not serve get no result, so RunPod returns them to the queue when the
    worker has exited. Owned by the SDK's event loop.
    """

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._held_jobs = 0
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Start watching the engine; has no effect if already started."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def hold(self) -> None:
        """Keep a job that cannot be served unanswered until the worker exits."""
        self.watch()
        self._held_jobs += 1
        try:
            await asyncio.Event().wait()
        finally:
            self._held_jobs -= 1

    async def _watch(self) -> None:
        with suppress(EngineError):
            # Starts the load if no fitness check has. The worker takes no job until the load ends.
            await self._engine.ready()
        error = await self._engine.wait_until_dead()
        logger.error("the worker ends with exit code 1: %s", error.message)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _FINAL_POSTS_TIMEOUT_S
        # The SDK's job counter has no event to wait for.
        while _count_jobs_in_progress() > self._held_jobs and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL_S)
        # The SDK's heartbeat process would keep reporting this worker as alive to the platform.
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(1)


def _count_jobs_in_progress() -> int:
    """Return the number of jobs that the SDK has taken and not reported yet."""
    progress: Any = JobsProgress
    return int(progress().get_job_count())


def make_handler(
    jobs: JobHandler, engine: AnyEngine, dead_engine_exit: DeadEngineExit | None
) -> Handler:
    """Return the handler for STREAM_MODE=aggregate: an async function that returns one JSON.

    Without `dead_engine_exit`, jobs that a dead engine cannot serve fail with the reason.
    """

    async def handler(job: dict[str, Any]) -> Any:
        """Run a job from the SDK, again if the engine crashes, and return its output."""
        # The SDK runs each job in its own task, so the log field is bound to this job alone.
        bind_contextvars(job_id=job.get("id"))
        attempts, slot = Attempts(engine), None
        while True:
            try:
                result = await jobs.run_encoded(job, slot, measure=sdk_size_bytes)
            finally:
                if slot is not None:
                    slot.release()
            if result.interruption is None:
                return jobs.sdk_output(result)
            if jobs.is_dead:
                if dead_engine_exit is None:
                    return jobs.sdk_output(result)
                await dead_engine_exit.hold()
            reason = result.reason or ""
            if not attempts.record_interruption(result.interruption):
                return jobs.sdk_output(attempts.build_failure(reason))
            logger.warning("the job runs again: %s", reason)
            slot = await attempts.next_slot()

    return handler


def make_generator_handler(
    jobs: JobHandler,
    engine: AnyEngine,
    dead_engine_exit: DeadEngineExit | None,
    include_in_result: Callable[[bool], None],
) -> GeneratorHandler:
    """Return the handler for STREAM_MODE=generator.

    It is an async generator function because the SDK inspects the function itself: with a plain
    function that returns a generator, the job would stay in progress forever.

    `include_in_result` is called before each yield. Its argument states whether the SDK includes
    the output in the job's result. A job that has yielded nothing runs again if the engine crashes;
    after the first output it cannot.
    """

    async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        bind_contextvars(job_id=job.get("id"))
        attempts, slot = Attempts(engine), None
        while True:
            interruption: tuple[Interruption, str] | None = None

            def record_interruption(kind: Interruption, reason: str) -> bool:
                nonlocal interruption
                interruption = kind, reason
                return True

            outputs = jobs.stream(
                job, slot, include_in_result=include_in_result, on_interruption=record_interruption
            )
            try:
                async for output in outputs:
                    if isinstance(output, dict):
                        # The SDK ignores this key in a generator; the worker exits instead.
                        output.pop("refresh_worker", None)
                    yield output
            finally:
                await outputs.aclose()
                if slot is not None:
                    slot.release()
            if interruption is None:
                return
            kind, reason = interruption
            if jobs.is_dead and dead_engine_exit is not None:
                await dead_engine_exit.hold()
            if jobs.is_dead or not attempts.record_interruption(kind):
                include_in_result(True)
                yield {"error": reason if jobs.is_dead else attempts.build_failure(reason).error}
                return
            logger.warning("the job runs again: %s", reason)
            slot = await attempts.next_slot()

    return handler


def register_model_check(engine: AnyEngine) -> None:
    """Let the SDK wait for the model before it takes jobs, and exit if the model cannot be loaded.

    SDK 1.9 and later run this fitness check. If it raises, the SDK exits with code 1; SDK 1.11 and
    later report the worker as unhealthy first, with the reason. Without a check the worker loads
    its model while it takes no job, and `DeadEngineExit` ends it with the same code.
    """
    register: Any = getattr(runpod.serverless, "register_fitness_check", None)
    if register is None:
        return

    async def model_is_loaded() -> None:
        try:
            await engine.ready()
        except EngineError as error:
            logger.error("the worker takes no job: %s", error.message)
            raise RuntimeError(error.message) from None
        finally:
            # The SDK runs its checks on a separate event loop.
            engine.detach()

    register(model_is_loaded)


def serve(jobs: JobHandler, engine: AnyEngine, mode: str) -> None:
    """Take jobs from RunPod until SIGTERM, after which the running jobs finish first.

    `mode` is STREAM_MODE. A worker whose model cannot be loaded takes no job and exits with code 1,
    see `register_model_check`. If the engine dies later, the worker exits with code 1 too.
    """
    # The SDK's own test server answers its callers directly; there is no queue to return jobs to.
    has_queue = bool(os.environ.get(_JOB_TAKE_URL)) and _SERVE_API_OPTION not in sys.argv[1:]
    dead_engine_exit = DeadEngineExit(engine) if has_queue else None

    def concurrency(_current: int) -> int:
        if dead_engine_exit is not None:
            dead_engine_exit.watch()
        if engine.state is not EngineState.READY and not _count_jobs_in_progress():
            # With 0 the SDK takes no job and calls this function again after a second. While it has
            # jobs the value must not be 0: jobs that it has not started yet would wait forever.
            return 0
        # One more than the slots: at this limit the SDK polls for its next job only once a second,
        # and a slot would be idle between jobs.
        return engine.slots + 1

    config: dict[str, Any] = {"concurrency_modifier": concurrency}

    def include_in_result(is_included: bool) -> None:
        # The SDK reads this key as soon as it has an output, before any other task can run.
        config["return_aggregate_stream"] = is_included

    register_model_check(engine)
    if mode == "generator":
        config["handler"] = make_generator_handler(
            jobs, engine, dead_engine_exit, include_in_result
        )
    else:
        config["handler"] = make_handler(jobs, engine, dead_engine_exit)
    runpod.serverless.start(config)
