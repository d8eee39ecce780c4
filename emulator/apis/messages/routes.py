"""Serve Anthropic's Messages API over HTTP."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from emulator.http.call_answers import CallAnswers
from emulator.http.disconnect import while_connected
from emulator.http.error_format import ErrorFormat
from emulator.http.responses import JSON
from emulator.http.route_facts import ApiRoute, OperationName, openai_facts
from emulator.http.sse import SSEResponse
from handler.apis.messages.api import MESSAGES, MessagesApi
from handler.apis.messages.wire_format import FORMAT

MESSAGES_FACTS = openai_facts(
    OperationName.MESSAGES, error_format=ErrorFormat.MESSAGES, wire_format=FORMAT
)


class MessagesRoutes:
    """Answers HTTP requests with the Messages API; has no state between requests."""

    def __init__(self, api: MessagesApi, answers: CallAnswers) -> None:
        self._api = api
        self._answers = answers

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        return [
            ApiRoute(MESSAGES, self._create_message, methods=["POST"], facts=MESSAGES_FACTS),
            ApiRoute(
                f"{MESSAGES}/count_tokens",
                self._count_tokens,
                methods=["POST"],
                facts=MESSAGES_FACTS,
            ),
        ]

    async def _create_message(self, request: Request) -> Response | SSEResponse:
        return await self._answers.answer(request, self._api, MESSAGES)

    async def _count_tokens(self, request: Request) -> Response:
        body = await self._answers.read_body(request)
        return JSON(await while_connected(request.receive, self._api.count_tokens(body)))
