"""Serve Ollama's API over HTTP."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from common.value_description import describe_value
from emulator.http.call_answers import CallAnswers
from emulator.http.disconnect import while_connected
from emulator.http.error_format import ErrorFormat
from emulator.http.responses import JSON
from emulator.http.route_facts import (
    ApiRoute,
    OperationName,
    RouteHandler,
    openai_facts,
)
from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR
from emulator.http.sse import SSEResponse
from handler.apis.ollama.api import API_VERSION, OllamaApi
from handler.apis.ollama.pull import ModelPuller
from handler.apis.ollama.wire_format import FORMAT
from handler.errors import InvalidRequest
from handler.input.request import read_flag


class OllamaRoutes:
    """Answers HTTP requests with Ollama's API; has no state between requests."""

    def __init__(self, api: OllamaApi, puller: ModelPuller, answers: CallAnswers) -> None:
        self._api = api
        self._puller = puller
        self._answers = answers

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        table: list[tuple[str, OperationName, RouteHandler]] = [
            ("POST", OperationName.CHAT, self._answer),
            ("POST", OperationName.GENERATE, self._answer),
            ("POST", OperationName.EMBED, self._answer),
            ("POST", OperationName.EMBEDDINGS, self._answer),
            ("POST", OperationName.PULL, self._pull),
            ("POST", OperationName.SHOW, self._show),
            ("GET", OperationName.TAGS, self._list_models),
            ("GET", OperationName.PS, self._list_running),
            ("GET", OperationName.VERSION, self._version),
        ]
        return [
            ApiRoute(
                f"/api/{operation}",
                handler,
                methods=[method],
                facts=openai_facts(
                    operation,
                    error_format=ErrorFormat.RUNPOD,
                    wire_format=FORMAT,
                ),
            )
            for method, operation, handler in table
        ]

    async def _answer(self, request: Request) -> Response | SSEResponse:
        body = await self._answers.read_body(request)
        if body.get("stream") is None:
            body["stream"] = True
        return await self._answers.answer(request, self._api, request.url.path, body)

    async def _pull(self, request: Request) -> Response | SSEResponse:
        body = await self._answers.read_body(request)
        name = self._puller.check(body)
        if not read_flag(body, "stream", default=True):
            return JSON(await while_connected(request.receive, self._puller.pull_to_end(name)))
        lines = self._puller.pull(name)
        return SSEResponse(
            lines,
            lambda: None,
            partial(FORMAT.encode_stream_error, SHUTTING_DOWN_ERROR),
            content_type=FORMAT.content_type,
        )

    async def _show(self, request: Request) -> Response:
        body = await self._answers.read_body(request)
        descriptions = self._api.descriptions
        # `name` is the older name of the field.
        name = body.get("model") or body.get("name") or None
        if name is not None and not isinstance(name, str):
            raise InvalidRequest(f"model must be a string, got {describe_value(name)}", "model")
        return JSON(await asyncio.to_thread(descriptions.show, name))

    async def _list_models(self, request: Request) -> Response:
        return JSON(await asyncio.to_thread(self._api.descriptions.list_models))

    async def _list_running(self, request: Request) -> Response:
        return JSON(await asyncio.to_thread(self._api.descriptions.list_running))

    async def _version(self, request: Request) -> Response:
        return JSON({"version": API_VERSION})
