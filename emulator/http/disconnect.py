"""Noticing that a client has left while something is done for it, and leaving it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope

T = TypeVar("T")

# The server's extension of its requests' scope: `abort` cuts their connection.
DROP = "emulator.drop"


class ClientDisconnected(Exception):
    """The client closed its connection; nobody is left to answer."""


async def disconnected(receive: Receive) -> None:
    """Return when the client has closed the connection; the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def hang_up(scope: Scope, receive: Receive) -> bool:
    """Cut a request's connection, whatever was answered; False where the server cannot."""
    extension = scope.get("extensions", {}).get(DROP)
    if extension is None:
        return False
    extension["abort"]()
    # Returning before it has noticed would look to the server like an answer that was forgotten.
    await disconnected(receive)
    return True


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
        left = not task.done()
        # Whoever reads from `receive` next must be alone with it.
        await _cancel(task, gone)
        if left:
            raise ClientDisconnected
        handed_on = True
        return task.result()
    finally:
        if not handed_on:
            try:
                await _cancel(task, gone)
            finally:
                if task.done() and not task.cancelled() and task.exception() is None:
                    dispose(task.result())


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
