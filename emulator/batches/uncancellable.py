"""Work that must not be left alone: what has files open that others close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(work: Callable[[], T]) -> T:
    """Return what a thread returns; who is cancelled meanwhile leaves when the thread is done."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await all_ended({running})
        raise


async def all_ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until tasks have ended; who is cancelled meanwhile, however often, leaves only then.

    A server's end cancels once, and once more who is late: to give in to the second would leave a
    thread alone with what it has just opened.
    """
    waiting = set(tasks)
    cancelled: asyncio.CancelledError | None = None
    while waiting:
        try:
            _, waiting = await asyncio.wait(waiting)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
