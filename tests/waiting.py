"""Waiting for what tells nobody when it happens: it is looked at again and again, not for ever."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# How much longer than on this machine all may take; `make test-arm64` says so of its own.
PATIENCE = float(os.environ.get("PATIENCE", "1"))
WAIT_S = 20.0 * PATIENCE
_LOOK_S = 0.005
# Whoever has to be asked has something else to do as well.
_ASK_S = 0.02


async def until(true: Callable[[], T | None], within_s: float = WAIT_S) -> T:
    """Wait for what can be seen from here; return what was seen."""

    async def look() -> T | None:
        return true()

    return await until_told(look, within_s, _LOOK_S)


async def until_told(
    ask: Callable[[], Awaitable[T | None]], within_s: float = WAIT_S, gap_s: float = _ASK_S
) -> T:
    """Wait for what somebody else has to be asked for; return the answer."""
    async with asyncio.timeout(within_s):
        while not (found := await ask()):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(gap_s)
        return found


def look_until(true: Callable[[], T | None], within_s: float = WAIT_S, gap_s: float = _ASK_S) -> T:
    """Wait as `until` does where no loop runs, by holding up this thread.

    Raises:
        TimeoutError: it did not happen within that time.
    """
    deadline = time.monotonic() + within_s
    while not (found := true()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not happen within {within_s} s")
        time.sleep(gap_s)
    return found


def look_until_up(
    server: subprocess.Popen[bytes], answers: Callable[[], bool], log: Path, within_s: float
) -> None:
    """Wait until a server that was started answers.

    Raises:
        AssertionError: it has ended, or does not answer within that time; with its last words.
    """
    try:
        look_until(lambda: server.poll() is not None or answers(), within_s)
        assert server.poll() is None
    except (AssertionError, TimeoutError) as error:
        said = log.read_text()[-2000:]
        raise AssertionError(f"{server.args!r} did not come up: {said}") from error
