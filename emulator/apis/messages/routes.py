"""Serve Anthropic's Messages API over HTTP."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from emulator.http.disconnect import while_connected
from emulator.http.error_format import MESSAGES_PATH
from emulator.http.opening import open_stream
from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.http.sse import KEEP_ALIVE_S, SSEResponse
from handler.apis.messages.events import error_event, stream_message
from handler.apis.messages.service import MessagesService


class MessagesRoutes:
    """Answers HTTP requests with the Messages service; has no state between requests."""

    def __init__(
        self,
        service: MessagesService,
        max_body_bytes: int,
        interval_s: float,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._interval_s = interval_s
        self._keep_alive_s = keep_alive_s

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        return [
            Route(MESSAGES_PATH, self._create_message, methods=["POST"]),
            Route(f"{MESSAGES_PATH}/count_tokens", self._count_tokens, methods=["POST"]),
        ]

    async def _create_message(self, request: Request) -> Response | SSEResponse:
        body = await read_json(request, self._max_body_bytes)
        call = await self._service.parse_call(body)
        if not call.chat.streaming:
            return JSON(await while_connected(request.receive, self._service.complete(call)))
        return await open_stream(
            request.receive,
            self._service.open_stream(call),
            stream=lambda opened: stream_message(call.chat, *opened, self._interval_s),
            abort=lambda opened: opened[0].abort(),
            error_event=error_event,
            keep_alive_s=self._keep_alive_s,
        )

    async def _count_tokens(self, request: Request) -> Response:
        body = await read_json(request, self._max_body_bytes)
        return JSON(await while_connected(request.receive, self._service.count_tokens(body)))
