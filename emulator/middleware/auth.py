"""API keys: who may call the server, where it is not open to everybody (R52)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Set
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from emulator.http.open_paths import OPEN_PATHS
from emulator.http.request_target import WORKER_KEY_PARAM, RouteGroup, classify, uses_named_errors
from emulator.http.responses import error_response
from handler.errors import ErrorInfo, ErrorMapping

_BEARER = b"bearer "
# Of a worker without a key, before it is told so.
_HOLD_S = 1.0
_UNAUTHORIZED = ErrorMapping(401, "authentication_error", name="unauthorized")


class ApiKeyMiddleware:
    """Lets a request through if it carries one of the keys (R52, R67).

    The key is sent as `Authorization: Bearer KEY`, as a bare `Authorization: KEY` (SDK workers), or
    as `x-api-key: KEY` on every route but the workers'. `Authorization` decides if both are sent.

    Open to all are the server's own /health, /docs, /openapi.json and the console's files, which
    tell nothing of anybody's jobs, or whatever `open_paths` has, and OPTIONS, which browsers send
    without a key. Digests are compared, each in constant time and all of them, so that the time
    tells neither a key nor its length.

    A `worker_key` in a URL opens the workers' calls and no others. The server's own workers have
    it: RunPod's SDK prefers the key in ~/.runpod/config.toml, which is one of the cloud, to
    what it is told.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: tuple[str, ...],
        open_paths: Set[str] = OPEN_PATHS,
        worker_key: str | None = None,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._worker_key = None if worker_key is None else _digest(worker_key.encode())
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or let the request through."""
        if (
            scope["type"] != "http"
            or scope["path"] in self._open_paths
            or scope["method"] == "OPTIONS"
            or self._known(_given(scope))
            or self._own_worker(scope)
        ):
            await self._app(scope, receive, send)
            return
        if classify(scope).group is RouteGroup.WORKER:
            # The SDK asks again at once, thousands of times a second.
            await asyncio.sleep(_HOLD_S)
        response = error_response(
            ErrorInfo(
                "an API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                _UNAUTHORIZED,
            ),
            named=uses_named_errors(scope),
        )
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _known(self, given: bytes | None) -> bool:
        if given is None:
            return False
        digest = _digest(given)
        return sum([hmac.compare_digest(digest, each) for each in self._digests]) > 0

    def _own_worker(self, scope: Scope) -> bool:
        if self._worker_key is None or classify(scope).group is not RouteGroup.WORKER:
            return False
        given = parse_qs(scope["query_string"]).get(WORKER_KEY_PARAM, [])
        return len(given) == 1 and hmac.compare_digest(_digest(given[0]), self._worker_key)


def _given(scope: Scope) -> bytes | None:
    """Return the key of a request; None if there is none, or a header is sent twice."""
    authorization = _values(scope, b"authorization")
    if not authorization:
        keys = [] if classify(scope).group is RouteGroup.WORKER else _values(scope, b"x-api-key")
        return keys[0] if len(keys) == 1 else None
    if len(authorization) != 1:
        return None
    value = authorization[0]
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else value


def _values(scope: Scope, header: bytes) -> list[bytes]:
    return [value.strip() for name, value in scope["headers"] if name == header]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
