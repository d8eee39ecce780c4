"""Call an ASGI application without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from emulator.http.route_facts import SCOPE_KEY, ApiRoute
from emulator.http.route_table import RouteLookupMiddleware, RouteTable
from tests.error_bodies import read_reason
from tests.unit.emulator.server_routes import find_route
from tests.waiting import wait_until


@dataclass
class AsgiResponse:
    """The response to one request; status 0 if there was none."""

    status: int
    headers: dict[str, str]
    body: bytes
    scope: Scope = field(default_factory=dict)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of OpenAI's API."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error

    @property
    def reason(self) -> str:
        """The sentence of an error in any format."""
        return read_reason(json.loads(self.body))


class InnerApp:
    """The application behind the middleware under test: answers 200 and records the paths."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.raises: BaseException | None = None
        self.body: bytes = b"{}"

    async def wait_for_calls(self, count: int) -> None:
        """Wait until `count` requests have arrived."""
        await wait_until(lambda: len(self.calls) >= count, 5, gap_s=0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls.append(scope["path"])
        self.entered.set()
        await self.gate.wait()
        if self.raises is not None:
            raise self.raises
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.body})


def serve_routes(
    routes: Sequence[ApiRoute], exception_handlers: Mapping[Any, Any] | None = None
) -> Starlette:
    """Return an application with only these routes, without the server's other middleware."""
    return Starlette(
        routes=routes,
        middleware=[Middleware(RouteLookupMiddleware, table=RouteTable(routes))],
        exception_handlers=exception_handlers,
    )


async def call(
    app: ASGIApp,
    path: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    scope: Mapping[str, Any] | None = None,
) -> AsgiResponse:
    """Send one request, with the route of a server that has a model in its scope."""
    sent: list[MutableMapping[str, Any]] = []
    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    request_scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": raw,
        **(scope or {}),
    }
    request_scope.setdefault(SCOPE_KEY, find_route(path, method))
    await app(request_scope, receive, send)
    start: MutableMapping[str, Any] = sent[0] if sent else {"status": 0, "headers": []}
    return AsgiResponse(
        start["status"],
        {name.decode().lower(): value.decode() for name, value in start["headers"]},
        b"".join(message.get("body", b"") for message in sent),
        request_scope,
    )
