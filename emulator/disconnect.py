"""Noticing that a client has left while something is done for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client closed its connection; nobody is left to answer."""


async def disconnected(receive: Receive) -> None:
    """Return when the client has closed the connection; the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(
    receive: Receive,
    work: Coroutine[Any, Any, T],
    dispose: Callable[[T], None] = lambda _: None,
) -> T:
    """Return what `work` returns, cancelling it as soon as the client leaves.

    A result that came but cannot be handed on, because this task was cancelled in the same turn of
    the loop, goes to `dispose`.

    Raises:
        ClientDisconnected: the client left first.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(disconnected(receive))
    handed_on = False
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        result = task.result()
        handed_on = True
        return result
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
        if not handed_on and not task.cancelled() and task.exception() is None:
            dispose(task.result())
