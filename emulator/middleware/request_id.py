"""A name for every request: taken from its client or made, on the answer and in the log (R55)."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, clear_contextvars, reset_contextvars

from emulator.http.disconnect import abort_connection
from emulator.http.request_target import (
    CONSOLE_POLLS,
    WORKER_POLL_OPS,
    WORKER_POST_OPS,
    RouteGroup,
    classify,
    uses_named_errors,
)
from emulator.http.responses import error_response
from emulator.http.shutdown_state import is_cancelled_by_shutdown, shutting_down_response
from handler.errors import error_info
from handler.log_json import FIELDS
from handler.log_reasons import error_message, loggable

logger = logging.getLogger(__name__)

# Any word of a sane length; what else clients send could forge log lines and headers.
_SANE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_LONGEST_PATH = 200
# An error body beyond this is none of ours.
_MAX_ERROR_BYTES = 64_000
# Calls that clients and workers repeat while a job runs. Those that succeed are not news: the
# job's own lines say when it started and how it ended.
_REPEATED = WORKER_POST_OPS | {"status", "status-sync", "stream"}

# Told of each request that is over: what it was, its status, how many seconds it took.
OnOver = Callable[[Scope, int, float], object]


class RequestIdMiddleware:
    """Names requests, writes one line about each when it is over, and answers for its failures.

    The name is bound to the task that serves the request, so whatever logs there carries it. The
    outermost of all, so that no answer goes without it: what the routes did not expect is answered
    and logged here. The SDK's workers put their job's id, and sometimes the one before, into
    X-Request-ID: it names the request then and is believed in nothing else.
    """

    def __init__(self, app: ASGIApp, on_over: OnOver = lambda scope, status, seconds: None) -> None:
        self._app = app
        self._on_over = on_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request under its name."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        name = _name(scope)
        status = 0
        error_body = b""

        # Not a coroutine of its own: a stream sends once for each token.
        def named(message: Message) -> Awaitable[None]:
            nonlocal status, error_body
            if status >= 400:
                error_body += message.get("body", b"")[:_MAX_ERROR_BYTES]
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", name)]}
            return send(message)

        # A request that was sent before the last was answered begins in the last one's context.
        clear_contextvars()
        bound = bind_contextvars(request_id=name.decode())
        try:
            await self._app(scope, receive, named)
        except asyncio.CancelledError:
            if not is_cancelled_by_shutdown(scope):
                raise
            if not status:
                await shutting_down_response(scope)(scope, receive, named)
            elif not await abort_connection(scope, receive):
                # Half an answer is out, to a client that does not read it.
                raise
        except Exception as error:
            if status:
                # Half an answer is out; only the end of the connection can say that it is half.
                raise
            told = error_response(error_info(error), named=uses_named_errors(scope))
            await told(scope, receive, named)
        finally:
            # Of a client that left before it was answered it is what proxies say.
            status, seconds = status or 499, time.monotonic() - began
            self._on_over(scope, status, seconds)
            _log(scope, status, seconds, error_body)
            reset_contextvars(**bound)


def _name(scope: Scope) -> bytes:
    for header, value in scope["headers"]:
        if header == b"x-request-id":
            given: bytes = value
            return given if _SANE.fullmatch(given) else _new_name()
    return _new_name()


def _new_name() -> bytes:
    # A UUID's digits, in a quarter of its time.
    return os.urandom(16).hex().encode()


def _log(scope: Scope, status: int, seconds: float, error_body: bytes) -> None:
    """Write the one line about a request, with the message of the error that it was answered."""
    level = _level(scope, status)
    if not logger.isEnabledFor(level):
        return
    # As it came, percent-encoded and without the query: nothing in it can end the line.
    path = scope.get("raw_path", b"").decode("latin-1")[:_LONGEST_PATH]
    method = scope["method"]
    fields: dict[str, object] = {
        "method": method,
        "path": path,
        "status": status,
        "duration_ms": round(seconds * 1000, 1),
    }
    job_id = scope.get("path_params", {}).get("job_id")
    if job_id is not None:
        fields["job_id"] = job_id[:_LONGEST_PATH]
    if error_body and (message := error_message(error_body)) is not None:
        fields["error"] = loggable(message)
    logger.log(level, "%s %s %d", method, path, status, extra={FIELDS: fields})


def _level(scope: Scope, status: int) -> int:
    """Return how severe the line is: polls, probes and assets are DEBUG, our own faults WARNING."""
    call = classify(scope)
    if call.group is RouteGroup.PUBLIC or call.operation in WORKER_POLL_OPS | CONSOLE_POLLS:
        return logging.DEBUG
    if status >= 500:
        return logging.WARNING
    return logging.DEBUG if call.operation in _REPEATED and status < 400 else logging.INFO
