"""Waiting for what tells nobody when it happens: it is looked at again and again, not for ever."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
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
