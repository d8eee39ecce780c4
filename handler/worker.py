"""The RunPod worker: the only file that imports the SDK."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import orjson
import runpod
from runpod.serverless.modules.worker_state import JobsProgress
from structlog.contextvars import bind_contextvars

from engine import AnyEngine
from handler.job import JobHandler

# How long a worker with a dead engine waits for its last results to be posted before it exits.
_LAST_POSTS_S = 30.0

Handler = Callable[[dict[str, Any]], Awaitable[Any]]
GeneratorHandler = Callable[[dict[str, Any]], AsyncGenerator[Any, None]]


def is_local() -> bool:
    """Whether one job is to be run here, the SDK's own rule: nobody else brings any."""
    if "--rp_serve_api" in sys.argv[1:]:
        return False
    given = any(arg.startswith("--test_input") for arg in sys.argv[1:])
    return given or "RUNPOD_WEBHOOK_GET_JOB" not in os.environ


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


def run_local(jobs: JobHandler, engine: AnyEngine, mode: str) -> int:
    """Run one job through the SDK's local test path and print its output as JSON, last on stdout.

    The job is `--test_input` or `test_input.json`. The SDK alone prints a Python repr, and for a
    generator handler a generator object without ever running it; so it is handed a function that
    runs the generator and returns what the platform would have collected.
    """
    outputs: list[Any] = []

    async def handler(job: dict[str, Any]) -> Any:
        try:
            if mode == "generator":
                kept = True

                def keep(told: bool) -> None:
                    nonlocal kept
                    kept = told

                output: Any = [each async for each in jobs.stream(job, keep=keep) if kept]
                if output and isinstance(output[-1], dict) and "error" in output[-1]:
                    output = output[-1]
            else:
                output = await jobs.run(job)
            outputs.append(output)
            # The SDK takes `error` out of the dict that it is given.
            return dict(output) if isinstance(output, dict) else output
        finally:
            await engine.close()

    code = 1
    try:
        runpod.serverless.start({"handler": handler})
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
        if not outputs:
            outputs.append({"error": "no job: --test_input or test_input.json must have input"})
    except (ValueError, OSError) as error:
        outputs.append({"error": f"the test input is not JSON: {error}"})
    except AttributeError:
        outputs.append({"error": "the test input is not a JSON object"})
    output = outputs[-1]
    if isinstance(output, dict):
        # Meant for the platform.
        output.pop("refresh_worker", None)
    style = orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0
    sys.stdout.flush()
    sys.stdout.buffer.write(orjson.dumps(output, option=style) + b"\n")
    sys.stdout.flush()
    return code


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
