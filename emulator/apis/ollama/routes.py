"""Serve Ollama's API over HTTP."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from emulator.http.disconnect import while_connected
from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR
from emulator.http.sse import SSEResponse
from handler.apis.ollama.answer import error_line, stream_lines
from handler.apis.ollama.pull import ModelPuller
from handler.apis.ollama.request import read_streaming
from handler.apis.ollama.service import API_VERSION, OllamaService, Route

_NDJSON = "application/x-ndjson"


class OllamaRoutes:
    """Answers HTTP requests with the Ollama service; has no state between requests."""

    def __init__(
        self,
        service: OllamaService,
        puller: ModelPuller,
        max_body_bytes: int,
        interval_s: float,
    ) -> None:
        self._service = service
        self._puller = puller
        self._max_body_bytes = max_body_bytes
        self._interval_s = interval_s

    def routes(self) -> list[HttpRoute]:
        """Return the routes to mount."""
        post = {
            "/api/chat": self._chat,
            "/api/generate": self._generate,
            "/api/embed": self._embed,
            "/api/embeddings": self._embed_one,
            "/api/pull": self._pull,
            "/api/show": self._show,
        }
        get = {
            "/api/tags": self._list_models,
            "/api/ps": self._list_running,
            "/api/version": self._version,
        }
        return [
            HttpRoute(path, handler, methods=[method])
            for method, handlers in (("POST", post), ("GET", get))
            for path, handler in handlers.items()
        ]

    async def _chat(self, request: Request) -> Response | SSEResponse:
        return await self._answer(request, "chat")

    async def _generate(self, request: Request) -> Response | SSEResponse:
        return await self._answer(request, "generate")

    async def _answer(self, request: Request, route: Route) -> Response | SSEResponse:
        body = await read_json(request, self._max_body_bytes)
        call = await self._service.parse_call(route, body)
        if not call.streaming or call.chat is None:
            return JSON(await while_connected(request.receive, self._service.complete(call)))
        generation = await while_connected(
            request.receive,
            self._service.open_stream(call),
            dispose=lambda opened: opened.abort(),
        )
        lines = stream_lines(call.chat, generation, call.encoder(), self._interval_s)
        # Its clients parse every line, so there are no comments between the lines.
        return SSEResponse(
            lines, generation.abort, error_line(SHUTTING_DOWN_ERROR), content_type=_NDJSON
        )

    async def _embed(self, request: Request) -> Response:
        body = await read_json(request, self._max_body_bytes)
        return JSON(await while_connected(request.receive, self._service.embed(body)))

    async def _embed_one(self, request: Request) -> Response:
        body = await read_json(request, self._max_body_bytes)
        return JSON(await while_connected(request.receive, self._service.embed_one(body)))

    async def _pull(self, request: Request) -> Response | SSEResponse:
        body = await read_json(request, self._max_body_bytes)
        name = self._puller.check(body)
        if not read_streaming(body):
            return JSON(await while_connected(request.receive, self._puller.pull_to_end(name)))
        lines = self._puller.pull(name)
        return SSEResponse(
            lines, lambda: None, error_line(SHUTTING_DOWN_ERROR), content_type=_NDJSON
        )

    async def _show(self, request: Request) -> Response:
        body = await read_json(request, self._max_body_bytes)
        descriptions = self._service.descriptions
        # `name` is the older name of the field.
        name = descriptions.find_name(body.get("model") or body.get("name"))
        return JSON(await asyncio.to_thread(descriptions.show, name))

    async def _list_models(self, request: Request) -> Response:
        return JSON(await asyncio.to_thread(self._service.descriptions.list_models))

    async def _list_running(self, request: Request) -> Response:
        return JSON(await asyncio.to_thread(self._service.descriptions.list_running))

    async def _version(self, request: Request) -> Response:
        return JSON({"version": API_VERSION})
