"""Check the API key of each request, if the server requires keys."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from emulator.http.api_key import WORKER_KEY_PARAM, read_api_key
from emulator.http.refusal_log import RefusalLog
from emulator.http.responses import error_response
from emulator.http.route_facts import DETAILS_HIDDEN, Access, read_route
from handler.errors import ErrorInfo, ErrorMapping

# The RunPod SDK repeats a rejected request at once, thousands of times a second.
_WORKER_DELAY_S = 1.0
_UNAUTHORIZED = ErrorMapping(
    401, "authentication_error", name="unauthorized", code="invalid_api_key"
)


class ApiKeyMiddleware:
    """Passes a request on if it has one of the keys.

    The key is sent as `Authorization: Bearer KEY`, as a bare `Authorization: KEY` (SDK workers), or
    as `x-api-key: KEY`, except on workers' routes. If both headers are sent, `Authorization`
    decides.

    No key is needed for open routes, whose responses have no job data, and for OPTIONS requests,
    which browsers send without a key. An open route hides its details unless the request has a key
    nevertheless. The digests of all keys are compared, each in constant time, so that the duration
    reveals neither a key nor its length.

    A `worker_key` in a URL is accepted on workers' routes only. Managed workers use it, because
    RunPod's SDK prefers the cloud API key in ~/.runpod/config.toml to the key in its environment.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: tuple[str, ...],
        worker_key: str | None = None,
    ) -> None:
        self._app = app
        self._refusals = RefusalLog()
        self._worker_key = None if worker_key is None else _digest(worker_key.encode())
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or pass the request on."""
        if scope["type"] == "http" and read_route(scope).facts.access is not Access.KEY:
            scope[DETAILS_HIDDEN] = not self._is_valid(read_api_key(scope))
            await self._app(scope, receive, send)
            return
        if (
            scope["type"] != "http"
            or scope["method"] == "OPTIONS"
            or self._is_valid(read_api_key(scope))
            or self._is_managed_worker(scope)
        ):
            await self._app(scope, receive, send)
            return
        if read_route(scope).is_worker:
            self._refusals.record(scope["path"].rpartition("/")[2], "it has no valid API key")
            await asyncio.sleep(_WORKER_DELAY_S)
        response = error_response(
            ErrorInfo(
                "an API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                _UNAUTHORIZED,
            ),
            scope,
        )
        response.headers["WWW-Authenticate"] = "Bearer"
        # Without this header, Claude Code sends a request with a wrong key ten times more.
        response.headers["x-should-retry"] = "false"
        await response(scope, receive, send)

    def _is_valid(self, key: bytes | None) -> bool:
        if key is None:
            return False
        digest = _digest(key)
        return sum([hmac.compare_digest(digest, each) for each in self._digests]) > 0

    def _is_managed_worker(self, scope: Scope) -> bool:
        if self._worker_key is None or not read_route(scope).is_worker:
            return False
        keys = parse_qs(scope["query_string"]).get(WORKER_KEY_PARAM, [])
        return len(keys) == 1 and hmac.compare_digest(_digest(keys[0]), self._worker_key)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
