"""A worker with RunPod's SDK; the variable KIND selects one of four handlers.

The job's input determines its output. The handler notes in the file LOG when a job begins or is
cancelled. `sleep_s` is the duration of a step of its work; with `until` the work lasts until a test
creates the file of that name.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import runpod

Job = dict[str, Any]

POLL_INTERVAL_S = 0.05
ODD = {"nan": float("nan"), "bytes": b"no JSON", "large": "x" * 2_000_000}


def note(job: Job, event: str) -> None:
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{event} {job['input'].get('name')} {os.getpid()}\n")


def make_output(job: Job) -> Any:
    job_input = job["input"]
    if "error" in job_input:
        raise ValueError(job_input["error"])
    if "odd" in job_input:
        return {"said": ODD[job_input["odd"]]}
    if "whole" in job_input:
        return job_input["whole"]
    return {"said": job_input.get("say"), "job": sorted(job)}


def make_chunks(job: Job) -> Iterator[Any]:
    """Yield the words of the text; at the end raise the error or yield the odd value, if any."""
    yield from str(job["input"].get("say", "")).split()
    if job["input"].keys() & {"error", "odd"}:
        yield make_output(job)


def step_s(job: Job) -> float:
    """Return the duration of a step of the job's work."""
    return float(job["input"].get("sleep_s", 0))


def is_waiting(job: Job) -> bool:
    """Return whether the job waits for a file that does not exist yet."""
    until = job["input"].get("until")
    return until is not None and not os.path.exists(until)


def plain(job: Job) -> Any:
    note(job, "began")
    if job["input"].get("progress"):
        runpod.serverless.progress_update(job, "half of it")
    time.sleep(step_s(job))
    while is_waiting(job):
        time.sleep(POLL_INTERVAL_S)
    return make_output(job)


async def coroutine(job: Job) -> Any:
    note(job, "began")
    try:
        await asyncio.sleep(step_s(job))
        while is_waiting(job):  # noqa: ASYNC110 - there is no event for a new file
            await asyncio.sleep(POLL_INTERVAL_S)
    except asyncio.CancelledError:
        note(job, "cancelled")
        raise
    return make_output(job)


def generator(job: Job) -> Iterator[Any]:
    note(job, "began")
    for chunk in make_chunks(job):
        yield chunk
        time.sleep(step_s(job))


async def async_generator(job: Job) -> AsyncIterator[Any]:
    note(job, "began")
    try:
        for chunk in make_chunks(job):
            yield chunk
            await asyncio.sleep(step_s(job))
    except (asyncio.CancelledError, GeneratorExit):
        # The second if the SDK was sending a part: only its own task is cancelled then.
        note(job, "cancelled")
        raise


if __name__ == "__main__":
    kinds: dict[str, Any] = {
        "plain": plain,
        "async": coroutine,
        "generator": generator,
        "async_generator": async_generator,
    }
    runpod.serverless.start(
        {
            "handler": kinds[os.environ["KIND"]],
            "return_aggregate_stream": True,
            "concurrency_modifier": lambda _current: int(os.environ.get("CONCURRENCY", "1")),
        }
    )
