"""Detect that a client has disconnected, and abort connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope

T = TypeVar("T")

# Our server's extension of the ASGI scope, with functions of the request's connection: `abort` cuts
# it, `reset` does so with a TCP RST, `write` sends bytes outside of the response, `close` closes it
# when all bytes are sent, and `write_eof` closes the server's direction only.
ABORT_EXTENSION = "emulator.drop"


class ClientDisconnected(Exception):
    """The client has closed its connection, so no response can be sent."""


async def wait_disconnected(receive: Receive) -> None:
    """Return when the client has closed the connection; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def abort_connection(scope: Scope, receive: Receive, *, reset: bool = False) -> bool:
    """Cut a request's connection; return False if the server does not support that.

    The client sees the end of the connection, or with `reset` that the server reset it. Without
    `reset`, the system also resets a connection from which not everything was read.
    """
    extension = scope.get("extensions", {}).get(ABORT_EXTENSION)
    if extension is None:
        return False
    extension["reset" if reset else "abort"]()
    # If the application returned before the server has noticed, the server would log that the
    # response is missing.
    await wait_disconnected(receive)
    return True


async def while_connected(
    receive: Receive,
    work: Coroutine[Any, Any, T],
    dispose: Callable[[T], None] = lambda _: None,
) -> T:
    """Return the result of `work`, and cancel it as soon as the client disconnects.

    If this task is cancelled in the same turn of the event loop in which `work` finishes, the
    result cannot be returned and goes to `dispose`.

    Raises:
        ClientDisconnected: the client disconnected first.
    """
    task = asyncio.create_task(work)
    disconnect = asyncio.create_task(wait_disconnected(receive))
    is_returned = False
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        is_disconnected = not task.done()
        # `receive` must not be called by two tasks at the same time.
        await _cancel(task, disconnect)
        if is_disconnected:
            raise ClientDisconnected
        is_returned = True
        return task.result()
    finally:
        if not is_returned:
            try:
                await _cancel(task, disconnect)
            finally:
                if task.done() and not task.cancelled() and task.exception() is None:
                    dispose(task.result())


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
