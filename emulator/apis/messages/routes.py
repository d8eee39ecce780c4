"""Serve Anthropic's Messages API over HTTP."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from emulator.http.call_answers import CallAnswers
from emulator.http.error_format import ErrorFormat
from emulator.http.route_facts import ApiRoute, OperationName, openai_facts
from emulator.http.sse import SSEResponse
from handler.apis.messages.api import MessagesApi
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
            ApiRoute(path, self._answer, methods=["POST"], facts=MESSAGES_FACTS)
            for path in self._api.routes
        ]

    async def _answer(self, request: Request) -> Response | SSEResponse:
        return await self._answers.answer(request, self._api, request.url.path)
