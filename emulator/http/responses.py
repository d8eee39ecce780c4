"""JSON responses and error responses."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from structlog.contextvars import get_contextvars

from emulator.http.request_target import uses_named_errors
from handler.errors import ErrorInfo, ErrorMapping, error_info


class JSON(Response):
    """A JSON body, encoded by orjson."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        return orjson.dumps(content)


def error_response(failure: ErrorInfo, *, named: bool = False) -> JSON:
    """Return an error in OpenAI's format; if `named`, with a named code (`oracle` dialect)."""
    headers = {}
    if failure.mapping.status in (429, 503):
        headers["Retry-After"] = str(failure.retry_after_s or 1)
    body = failure.named_error() if named else failure.openai_error()
    request_id = get_contextvars().get("request_id")
    if request_id is not None:
        body["error"]["request_id"] = request_id
    return JSON(body, failure.mapping.status, headers)


async def on_error(request: Request, error: Exception) -> Response:
    """Return the response to an exception of a route; tracebacks never reach a client (R53)."""
    return error_response(error_info(error))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Return the response to an unknown path or method, in the format of all other errors."""
    if not isinstance(error, HTTPException):
        return await on_error(request, error)
    kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
    message = f"{request.method} {request.url.path}: {error.detail}"
    failure = ErrorInfo(message, ErrorMapping(error.status_code, kind))
    response = error_response(failure, named=uses_named_errors(request.scope))
    response.headers.update(error.headers or {})
    return response
