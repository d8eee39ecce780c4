"""Serve the OpenAI API over HTTP, in all three dialects."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from emulator.apis.openai.chat_rate_limit import ChatRateLimiter
from emulator.apis.openai.system_status import SystemStatus
from emulator.apis.openai.tokenize_routes import TokenizeRoutes
from emulator.http.disconnect import while_connected
from emulator.http.opening import open_stream
from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.http.sse import KEEP_ALIVE_S, SSEResponse
from handler.apis.openai.dialect import OPENAI, ORACLE, OVMS, Dialect
from handler.apis.openai.events import DONE, error_event, stream_events
from handler.apis.openai.service import (
    EMBEDDINGS,
    ENDPOINT_SPECS,
    MODELS,
    SCORING_ROUTES,
    OpenAIService,
)
from handler.apis.truncation import CHAT_ROUTE

RouteHandler = Callable[[Request], Coroutine[Any, Any, Any]]

PREFIXES: Mapping[str, Dialect] = {"/v1": OPENAI, "/v3": OVMS, "": ORACLE}


class OpenAIRoutes:
    """Answers HTTP requests with the OpenAI service; has no state between requests.

    The prefix of a route selects the dialect. All dialects share this code, except that the routes
    without a prefix have a rate limit, `/system/status`, and named error codes.
    """

    def __init__(
        self,
        service: OpenAIService,
        rate_limiter: ChatRateLimiter,
        system_status: SystemStatus,
        tokenize_routes: TokenizeRoutes,
        max_body_bytes: int,
        interval_s: float,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._service = service
        self._rate_limiter = rate_limiter
        self._system_status = system_status
        self._tokenize_routes = tokenize_routes
        self._max_body_bytes = max_body_bytes
        self._interval_s = interval_s
        self._keep_alive_s = keep_alive_s

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        routes = [
            route
            for prefix, dialect in PREFIXES.items()
            for route in self._dialect_routes(prefix, dialect)
        ]
        status = self._system_status.respond
        routes.append(Route("/system/status", status, methods=["GET"]))
        return [*routes, *self._tokenize_routes.routes()]

    def _dialect_routes(self, prefix: str, dialect: Dialect) -> list[Route]:
        post = {path: self._generation_handler(path, dialect) for path in ENDPOINT_SPECS}
        post[EMBEDDINGS] = self._embeddings_handler(dialect)
        for path in SCORING_ROUTES:
            post[path] = self._scoring_handler(path, dialect)
        get: dict[str, RouteHandler] = {
            MODELS: self._list_models,
            f"{MODELS}/{{model:path}}": self._get_model,
        }
        limited = {CHAT_ROUTE: self._rate_limiter.middleware()} if dialect is ORACLE else {}
        return [
            Route(
                prefix + path.removeprefix("/v1"),
                handler,
                methods=[method],
                middleware=limited.get(path),
            )
            for method, handlers in (("POST", post), ("GET", get))
            for path, handler in handlers.items()
        ]

    async def _list_models(self, request: Request) -> Response:
        return JSON(self._service.list_models())

    async def _get_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if not name:
            # Model names may contain slashes, so this route also matches `/models/`.
            return RedirectResponse(request.url.path.rstrip("/"))
        return JSON(self._service.get_model(name))

    def _generation_handler(self, path: str, dialect: Dialect) -> RouteHandler:
        async def handle(request: Request) -> Response | SSEResponse:
            body = await read_json(request, self._max_body_bytes)
            call = await self._service.parse_call_async(path, body, dialect)
            if not call.streaming:
                return JSON(await while_connected(request.receive, self._service.complete(call)))
            return await open_stream(
                request.receive,
                self._service.open_stream(call),
                stream=lambda opened: stream_events(call, opened, self._interval_s),
                abort=lambda opened: opened.abort(),
                error_event=lambda failure: error_event(failure, dialect) + DONE,
                keep_alive_s=self._keep_alive_s,
            )

        return handle

    def _embeddings_handler(self, dialect: Dialect) -> RouteHandler:
        async def handle(request: Request) -> Response:
            body = await read_json(request, self._max_body_bytes)
            embeddings = self._service.create_embeddings(body, dialect)
            return JSON(await while_connected(request.receive, embeddings))

        return handle

    def _scoring_handler(self, path: str, dialect: Dialect) -> RouteHandler:
        async def handle(request: Request) -> Response:
            body = await read_json(request, self._max_body_bytes)
            scores = self._service.create_scores(path, body, dialect)
            return JSON(await while_connected(request.receive, scores))

        return handle
