"""Begin a stream of events before its first text if that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from starlette.types import Receive

from emulator.http.disconnect import while_connected
from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR
from emulator.http.sse import KEEP_ALIVE, SSEResponse
from handler.errors import ErrorInfo, error_info

T = TypeVar("T")


async def open_stream(
    receive: Receive,
    opening: Coroutine[Any, Any, T],
    *,
    stream: Callable[[T], AsyncGenerator[bytes, None]],
    abort: Callable[[T], None],
    error_event: Callable[[ErrorInfo], bytes],
    keep_alive_s: float,
) -> SSEResponse:
    """Return the response that streams what `opening` returns.

    An error of `opening` is raised, so that the client gets its status. But a model may take
    minutes to load, and proxies close a connection that is silent for that long: after
    `keep_alive_s` the response begins with comments, and an error is the stream's only event.

    Raises:
        ClientDisconnected: the client disconnected first; `opening` is then cancelled.
    """
    task = asyncio.create_task(opening)
    try:
        await while_connected(receive, _wait(task, keep_alive_s))
    except BaseException:
        _abandon(task, abort)
        await asyncio.gather(task, return_exceptions=True)
        raise
    events = stream(task.result()) if task.done() else _stream_later(task, stream, error_event)
    return SSEResponse(
        events, partial(_abandon, task, abort), error_event(SHUTTING_DOWN_ERROR), keep_alive_s
    )


async def _wait(task: asyncio.Task[T], limit_s: float) -> None:
    await asyncio.wait({task}, timeout=limit_s)


async def _stream_later(
    task: asyncio.Task[T],
    stream: Callable[[T], AsyncGenerator[bytes, None]],
    error_event: Callable[[ErrorInfo], bytes],
) -> AsyncGenerator[bytes, None]:
    yield KEEP_ALIVE
    try:
        opened = await task
    except Exception as error:
        # Any error: a stream that just stops looks like a complete answer to some clients.
        yield error_event(error_info(error))
        return
    async with aclosing(stream(opened)) as events:
        async for block in events:
            yield block


def _abandon(task: asyncio.Task[T], abort: Callable[[T], None]) -> None:
    """Cancel a task, or abort what it has returned; also if it returns in spite of that."""

    def dispose(done: asyncio.Task[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            abort(done.result())

    if task.done():
        dispose(task)
    else:
        task.cancel()
        task.add_done_callback(dispose)
