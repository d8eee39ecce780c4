"""Bounded polling, for conditions that raise no event."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# Factor on all time limits; `make test-arm64` sets it, because qemu is slow.
PATIENCE = float(os.environ.get("PATIENCE", "1"))
WAIT_S = 30.0 * PATIENCE
_POLL_INTERVAL_S = 0.005
# For conditions that cost the other side a request.
_REQUEST_INTERVAL_S = 0.02


async def wait_until(
    check: Callable[[], T | None], within_s: float = WAIT_S, gap_s: float = _POLL_INTERVAL_S
) -> T:
    """Return the first true value of a check. Raises TimeoutError.

    With a `gap_s` of 0 it checks in each iteration of the event loop.
    """

    async def poll() -> T | None:
        return check()

    return await poll_until(poll, within_s, gap_s)


async def poll_until(
    check: Callable[[], Awaitable[T | None]],
    within_s: float = WAIT_S,
    gap_s: float = _REQUEST_INTERVAL_S,
) -> T:
    """Return the first true value of an asynchronous check. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not (value := await check()):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(gap_s)
        return value


async def run_ready_tasks(iterations: int = 20) -> None:
    """Let all ready tasks run, and those that they wake, until they wait for something else.

    An event loop does not tell whether a task is ready, so this runs a number of its iterations.
    Fewer iterations stop in the middle of an operation.
    """
    for _ in range(iterations):
        await asyncio.sleep(0)


def wait_until_blocking(
    check: Callable[[], T | None], within_s: float = WAIT_S, gap_s: float = _REQUEST_INTERVAL_S
) -> T:
    """Return the first true value of a check, for tests without an event loop.

    Raises:
        TimeoutError: the check was not true within that time.
    """
    deadline = time.monotonic() + within_s
    while not (value := check()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not happen within {within_s} s")
        time.sleep(gap_s)
    return value


def wait_for_server(
    server: subprocess.Popen[bytes], is_up: Callable[[], bool], log: Path, within_s: float
) -> None:
    """Wait until a started server responds.

    Raises:
        AssertionError: the server ended, or did not respond in time; with the end of its log.
    """
    try:
        wait_until_blocking(lambda: server.poll() is not None or is_up(), within_s)
        assert server.poll() is None
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(
            f"{server.args!r} did not come up: {log.read_text()[-2000:]}"
        ) from error
