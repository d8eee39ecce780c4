"""Give each request an id, log it when it has ended, and answer unexpected errors."""

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
from emulator.http.responses import error_response
from emulator.http.route_facts import RequestLog, read_route
from emulator.http.shutdown_state import is_cancelled_by_shutdown, shutting_down_response
from handler.errors import error_info
from handler.logs.json_lines import FIELDS
from handler.logs.reasons import extract_error_message, sanitize_for_log

logger = logging.getLogger(__name__)

# Other characters could forge log lines and headers.
_VALID_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_MAX_PATH_CHARS = 200
# Our own error bodies are shorter.
_MAX_ERROR_BYTES = 64_000

# Called with the scope, the status and the duration in seconds of each finished request.
RequestEndHook = Callable[[Scope, int, float], object]


class RequestIdMiddleware:
    """Sets X-Request-ID on the response, logs the request, and answers unexpected errors.

    The id is taken from the request's X-Request-ID or generated. It is bound to the task that
    serves the request, so all log lines of that task have it. Only the lookup of the route is
    outside, so every response has an id, and every unexpected exception is answered and logged. SDK
    workers send the id of their job, or of the job before, as X-Request-ID; it is only used for
    logging.
    """

    def __init__(
        self, app: ASGIApp, on_end: RequestEndHook = lambda scope, status, seconds: None
    ) -> None:
        self._app = app
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request with an id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = time.monotonic()
        request_id = _read_or_create_id(scope)
        status = 0
        error_body = b""

        # Not a coroutine function: a stream calls it for each token, and a coroutine costs time.
        def send_with_id(message: Message) -> Awaitable[None]:
            nonlocal status, error_body
            if status >= 400:
                error_body += message.get("body", b"")[:_MAX_ERROR_BYTES]
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (b"x-request-id", request_id)]
                message = {**message, "headers": headers}
            return send(message)

        # A pipelined request starts in the context of the previous request.
        clear_contextvars()
        bound = bind_contextvars(request_id=request_id.decode())
        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            if not await _end_for_shutdown(scope, receive, send_with_id, has_started=status > 0):
                raise
        except Exception as error:
            if status:
                # A part of the response was sent; only closing the connection shows that it is
                # incomplete.
                raise
            response = error_response(error_info(error), scope)
            await response(scope, receive, send_with_id)
        finally:
            # 499 is what proxies log if the client disconnects before the response.
            status, seconds = status or 499, time.monotonic() - started_at
            self._on_end(scope, status, seconds)
            _log(scope, status, seconds, error_body)
            reset_contextvars(**bound)


async def _end_for_shutdown(
    scope: Scope, receive: Receive, send: Send, *, has_started: bool
) -> bool:
    """End a cancelled request if the shutdown cancelled it. Return False if it stays cancelled."""
    if not is_cancelled_by_shutdown(scope):
        return False
    if has_started:
        # A part of the response was sent: only a client that does not read it gets nothing further.
        return await abort_connection(scope, receive)
    await shutting_down_response(scope)(scope, receive, send)
    return True


def _read_or_create_id(scope: Scope) -> bytes:
    for header, value in scope["headers"]:
        if header == b"x-request-id":
            client_id: bytes = value
            return client_id if _VALID_ID.fullmatch(client_id) else _create_id()
    return _create_id()


def _create_id() -> bytes:
    # The hexadecimal digits of a UUID, in a quarter of the time that `uuid4` takes.
    return os.urandom(16).hex().encode()


def _log(scope: Scope, status: int, seconds: float, error_body: bytes) -> None:
    """Log a request, with the message of its error response."""
    level = _level(scope, status)
    if not logger.isEnabledFor(level):
        return
    # As received, percent-encoded and without the query, so it cannot contain a line break.
    path = scope.get("raw_path", b"").decode("latin-1")[:_MAX_PATH_CHARS]
    method = scope["method"]
    fields: dict[str, object] = {
        "method": method,
        "path": path,
        "status": status,
        "duration_ms": round(seconds * 1000, 1),
    }
    job_id = scope.get("path_params", {}).get("job_id")
    if job_id is not None:
        fields["job_id"] = job_id[:_MAX_PATH_CHARS]
    if error_body and (message := extract_error_message(error_body)) is not None:
        fields["error"] = sanitize_for_log(message)
    logger.log(level, "%s %s %d", method, path, status, extra={FIELDS: fields})


def _level(scope: Scope, status: int) -> int:
    """Return the log level: DEBUG for polls, probes and assets, WARNING for statuses from 500."""
    log = read_route(scope).facts.log
    if log is RequestLog.DEBUG:
        return logging.DEBUG
    if status >= 500:
        return logging.WARNING
    return logging.DEBUG if log is RequestLog.FAILURES and status < 400 else logging.INFO
