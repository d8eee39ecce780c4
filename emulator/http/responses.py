"""JSON responses and error responses."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope
from structlog.contextvars import get_contextvars

from emulator.http.error_format import ErrorFormat, build_error_body
from emulator.http.route_facts import read_route
from handler.errors import ErrorInfo, ErrorMapping, error_info


class JSON(Response):
    """A JSON body, encoded by orjson."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        return orjson.dumps(content)


def error_response(failure: ErrorInfo, scope: Scope) -> JSON:
    """Return an error in the format of the API that the request belongs to."""
    headers = {}
    if failure.mapping.status in (429, 503):
        headers["Retry-After"] = str(failure.retry_after_s or 1)
    error_format = read_route(scope).facts.error_format
    body = build_error_body(failure, error_format, get_contextvars().get("request_id"))
    response = JSON(body, failure.mapping.status, headers)
    if error_format is ErrorFormat.PROBLEM:
        response.headers["content-type"] = ErrorFormat.PROBLEM.value
    return response


async def on_error(request: Request, error: Exception) -> Response:
    """Return the response to an exception of a route; tracebacks never reach a client."""
    return error_response(error_info(error), request.scope)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Return the response to an unknown path or method, in the format of all other errors."""
    if not isinstance(error, HTTPException):
        return await on_error(request, error)
    kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
    message = f"{request.method} {request.url.path}: {error.detail}"
    if error.detail == HTTPStatus.NOT_FOUND.phrase:
        message = (
            f"{request.method} {request.url.path} is not supported here; /openapi.json has the "
            "routes of this server"
        )
    failure = ErrorInfo(message, ErrorMapping(error.status_code, kind))
    response = error_response(failure, request.scope)
    response.headers.update(error.headers or {})
    return response
