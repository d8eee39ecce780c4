"""Waits for work that must end before its caller may, because the caller closes its files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_uncancellable(work: Callable[[], T]) -> T:
    """Run `work` on a thread and return its result.

    If the caller is cancelled, CancelledError is raised only when the thread is done.
    """
    future = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await wait_until_done({future})
        raise


async def wait_until_done(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Wait for tasks; if the caller is cancelled, raise CancelledError only when all are done.

    The shutdown cancels once, and again after the drain limit. If the second cancellation were
    raised at once, a thread would go on alone with the files that it has just opened.
    """
    pending = set(tasks)
    cancelled: asyncio.CancelledError | None = None
    while pending:
        try:
            _, pending = await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
