"""Answer a call over HTTP: whole, or as a stream that begins before its first text if need be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from emulator.http.disconnect import while_connected
from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR
from emulator.http.sse import COMMENT, SSEResponse
from handler.apis.core.api import Api, ApiCall, CallContext
from handler.errors import error_info


class CallAnswers:
    """Answers HTTP requests with calls of the APIs; has no state between requests.

    `interval_s` is the minimum time between two blocks of a stream, and `comments_after_s` the
    silence after which it has a comment; None for no comments.
    """

    def __init__(
        self, max_body_bytes: int, interval_s: float, comments_after_s: float | None
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._context = CallContext(interval_s=interval_s)
        self.comments_after_s = comments_after_s

    async def read_body(self, request: Request) -> dict[str, Any]:
        """Return the body of a request as a JSON object; raises as `read_json` does."""
        return await read_json(request, self._max_body_bytes)

    async def answer(
        self, request: Request, api: Api, route: str, body: dict[str, Any] | None = None
    ) -> Response | SSEResponse:
        """Return the answer to a request; `body` is its body if it was read already.

        Raises:
            HandlerError: the body is wrong, or names a model that is not there.
            EngineError: the engine failed before any text, or is not available.
            ClientDisconnected: the client disconnected first; the call is then cancelled.
        """
        if body is None:
            body = await self.read_body(request)
        call = await api.parse(route, body, self._context)
        return await answer_call(request.receive, call, self.comments_after_s)


async def answer_call(
    receive: Receive, call: ApiCall, comments_after_s: float | None
) -> Response | SSEResponse:
    """Return the answer to a call, whole or as a stream. Raises as `CallAnswers.answer` does."""
    if not call.streaming:
        return JSON(await while_connected(receive, call.complete()))
    return await open_stream(receive, call, comments_after_s)


async def open_stream(
    receive: Receive, call: ApiCall, comments_after_s: float | None
) -> SSEResponse:
    """Open the stream of a call and return the response that sends it.

    An error before the first text is raised, so that the client gets its status. But a model may
    take minutes to load, and proxies close a connection that is silent for that long: after
    `comments_after_s` the response begins with comments, and an error becomes the end of the
    stream. None for no comments.
    A stream of lines has no comments, so it is silent until its first text.

    Raises:
        ClientDisconnected: the client disconnected first; opening is then cancelled.
    """
    if call.format.stream == "lines":
        comments_after_s = None
    task = asyncio.create_task(call.open())
    try:
        await while_connected(receive, _wait(task, comments_after_s))
    except BaseException:
        _abandon(task, call)
        await asyncio.gather(task, return_exceptions=True)
        raise
    if task.done():
        task.result()
    return SSEResponse(
        _stream(call) if task.done() else _stream_later(task, call),
        partial(_abandon, task, call),
        partial(call.encode_stream_error, SHUTTING_DOWN_ERROR),
        comments_after_s,
        call.format.content_type,
    )


async def _wait(task: asyncio.Task[None], limit_s: float | None) -> None:
    await asyncio.wait({task}, timeout=limit_s)


def _stream(call: ApiCall) -> AsyncGenerator[bytes, None]:
    # Only a call that is run for a job yields anything but bytes.
    return cast("AsyncGenerator[bytes, None]", call.stream())


async def _stream_later(task: asyncio.Task[None], call: ApiCall) -> AsyncGenerator[bytes, None]:
    yield COMMENT
    try:
        await task
    except Exception as error:
        # Any error: a stream that just stops looks like a complete answer to some clients.
        yield call.encode_stream_error(error_info(error))
        return
    async with aclosing(_stream(call)) as events:
        async for block in events:
            yield block


def _abandon(task: asyncio.Task[None], call: ApiCall) -> None:
    """Abort a stream, or cancel its opening; abort it too if it opens in spite of that."""
    if task.done():
        call.abort()
    else:
        task.cancel()
        task.add_done_callback(lambda _: call.abort())
