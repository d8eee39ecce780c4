"""Reject new work during a shutdown, and count the requests that are still active."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from emulator.http.responses import error_response
from emulator.http.route_facts import RouteGroup, read_route
from emulator.http.shutdown_state import (
    RETRY_AFTER_S,
    SCOPE_KEY,
    SHUTTING_DOWN,
    ShutdownState,
    shutting_down_response,
)
from handler.errors import ErrorInfo, ErrorMapping

_TRY_LATER = ErrorMapping(429, "rate_limit_error", retryable=True)


class DrainGate:
    """Rejects requests that would start work while the server drains; counts OpenAI requests.

    `/run` gets 503 as well, although its job would be durable: the job would wait for a restart
    that may never come, and a 503 lets the client retry elsewhere. Workers that request jobs get
    429, because the RunPod SDK then waits 5 s, and after a 503 or a 204 not at all. All other
    requests are served until the end: results, statuses, cancels, streams.
    """

    def __init__(self, app: ASGIApp, shutdown: ShutdownState) -> None:
        self._app = app
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 503 or 429, or pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[SCOPE_KEY] = self._shutdown
        facts = read_route(scope).facts
        if self._shutdown.draining.is_set():
            if facts.takes_jobs:
                error = ErrorInfo(SHUTTING_DOWN, _TRY_LATER, retry_after_s=RETRY_AFTER_S)
                await error_response(error, scope)(scope, receive, send)
                return
            if facts.starts_work and scope["method"] == "POST":
                await shutting_down_response(scope)(scope, receive, send)
                return
        if facts.group is not RouteGroup.OPENAI:
            await self._app(scope, receive, send)
            return
        with self._shutdown.track_request():
            await self._app(scope, receive, send)
