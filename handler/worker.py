"""The RunPod worker: the only file that imports the SDK."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import runpod
from runpod.serverless.modules.worker_state import JobsProgress
from structlog.contextvars import bind_contextvars

from engine import AnyEngine
from handler.job import JobHandler

# How long a worker with a dead engine waits for its last results to be posted before it exits.
_LAST_POSTS_S = 30.0

Handler = Callable[[dict[str, Any]], Awaitable[Any]]
GeneratorHandler = Callable[[dict[str, Any]], AsyncGenerator[Any, None]]


def make_handler(jobs: JobHandler) -> Handler:
    """Return the function for STREAM_MODE=aggregate: a plain async one, one JSON out."""

    async def handler(job: dict[str, Any]) -> Any:
        # The SDK runs each job in a task of its own.
        bind_contextvars(job_id=job.get("id"))
        return await jobs.run(job)

    return handler


def make_generator_handler(
    jobs: JobHandler, on_dead: Callable[[], None], keep: Callable[[bool], None]
) -> GeneratorHandler:
    """Return the function for STREAM_MODE=generator.

    A real async generator function: the SDK looks at the function itself, and a plain one that
    returns a generator would leave its job in progress for ever. The SDK ignores `refresh_worker`
    in what a generator yields, so a dead engine is told to `on_dead` instead. `keep` is told before
    each yield whether the SDK is to keep it for the job's result.
    """

    async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        bind_contextvars(job_id=job.get("id"))
        outputs = jobs.stream(job, keep=keep)
        try:
            async for output in outputs:
                if isinstance(output, dict) and output.pop("refresh_worker", False):
                    on_dead()
                yield output
        finally:
            await outputs.aclose()

    return handler


def serve(jobs: JobHandler, engine: AnyEngine, mode: str) -> None:
    """Take jobs from RunPod until told to stop; SIGTERM lets running ones finish first."""
    config: dict[str, Any] = {
        # One more than there are slots: the SDK asks for its next job only once a second while it
        # is full, so a slot would stand idle between jobs.
        "concurrency_modifier": lambda _current: engine.slots + 1,
    }

    def on_dead() -> None:
        # The SDK looks at this key after each job: it reports the pod and ends the job loop.
        if not config.get("refresh_worker"):
            config["refresh_worker"] = True
            asyncio.get_running_loop().create_task(_exit_when_posted())

    def keep(kept: bool) -> None:
        # The SDK looks at this key as soon as it has an output, before anything else can run.
        config["return_aggregate_stream"] = kept

    if mode == "generator":
        config["handler"] = make_generator_handler(jobs, on_dead, keep)
    else:
        config["handler"] = make_handler(jobs)
    runpod.serverless.start(config)


async def _exit_when_posted() -> None:
    """End the process once every result is posted: the SDK would wait out its long polls first."""
    progress: Any = JobsProgress
    posted = progress()
    deadline = asyncio.get_running_loop().time() + _LAST_POSTS_S
    # The SDK's tracker has no event to wait for.
    while posted.get_job_count() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    # The SDK's heartbeat would go on for ever and tell the platform that this worker is alive.
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(1)
