"""OpenAI's routes over HTTP."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from emulator.body import read_json
from emulator.disconnect import while_connected
from emulator.responses import JSON
from emulator.sse import SSEResponse
from handler.openai.service import MODELS, SHAPES, OpenAIService, events
from handler.pipeline import Running


class OpenAIRoutes:
    """Turns HTTP calls into calls of the service; holds nothing between them."""

    def __init__(self, service: OpenAIService, max_body_bytes: int, interval_s: float) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._interval_s = interval_s

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        return [
            *(Route(path, self._generate, methods=["POST"]) for path in SHAPES),
            Route(MODELS, self._models, methods=["GET"]),
        ]

    async def _models(self, request: Request) -> Response:
        return JSON(self._service.models())

    async def _generate(self, request: Request) -> Response | SSEResponse:
        body = await read_json(request, self._max_body_bytes)
        codec = self._service.codec(request.url.path, body)
        if not codec.request.streaming:
            return JSON(await while_connected(request.receive, self._service.whole(codec)))
        running = await while_connected(
            request.receive, self._service.open(codec), dispose=Running.abort
        )
        return SSEResponse(events(codec, running, self._interval_s), running.abort)
