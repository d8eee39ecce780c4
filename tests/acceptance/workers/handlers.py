"""A worker as somebody writes one with RunPod's SDK; KIND says which of the four handlers it has.

It does what its job's input says, and notes in the file LOG what nobody else would see. `sleep_s`
is how long its work takes; with `until` it goes on until a test makes the file of that name.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import runpod

Job = dict[str, Any]

LOOK_S = 0.05
ODD = {"nan": float("nan"), "bytes": b"no JSON", "large": "x" * 2_000_000}


def note(job: Job, what: str) -> None:
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{what} {job['input'].get('name')} {os.getpid()}\n")


def answer(job: Job) -> Any:
    given = job["input"]
    if "error" in given:
        raise ValueError(given["error"])
    if "odd" in given:
        return {"said": ODD[given["odd"]]}
    if "whole" in given:
        return given["whole"]
    return {"said": given.get("say"), "job": sorted(job)}


def parts(job: Job) -> Iterator[Any]:
    """Yield what is to be said word by word; the error, if there is to be one, at the end."""
    yield from str(job["input"].get("say", "")).split()
    if job["input"].keys() & {"error", "odd"}:
        yield answer(job)


def work_s(job: Job) -> float:
    """How long a step of the job's work takes."""
    return float(job["input"].get("sleep_s", 0))


def waits(job: Job) -> bool:
    """Whether the file that the job waits for is still to come."""
    until = job["input"].get("until")
    return until is not None and not os.path.exists(until)


def plain(job: Job) -> Any:
    note(job, "began")
    if job["input"].get("progress"):
        runpod.serverless.progress_update(job, "half of it")
    time.sleep(work_s(job))
    while waits(job):
        time.sleep(LOOK_S)
    return answer(job)


async def coroutine(job: Job) -> Any:
    note(job, "began")
    try:
        await asyncio.sleep(work_s(job))
        while waits(job):  # noqa: ASYNC110 - a file tells nobody that it is there
            await asyncio.sleep(LOOK_S)
    except asyncio.CancelledError:
        note(job, "cancelled")
        raise
    return answer(job)


def generator(job: Job) -> Iterator[Any]:
    note(job, "began")
    for part in parts(job):
        yield part
        time.sleep(work_s(job))


async def async_generator(job: Job) -> AsyncIterator[Any]:
    note(job, "began")
    try:
        for part in parts(job):
            yield part
            await asyncio.sleep(work_s(job))
    except asyncio.CancelledError:
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
