"""Serve the OpenAI API over HTTP, in all three dialects."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from emulator.apis.openai.chat_rate_limit import ChatRateLimiter
from emulator.apis.openai.system_status import SystemStatus
from emulator.apis.openai.tokenize_routes import TokenizeRoutes
from emulator.http.call_answers import CallAnswers
from emulator.http.error_format import ErrorFormat
from emulator.http.responses import JSON
from emulator.http.route_facts import (
    ApiRoute,
    OperationName,
    RouteFacts,
    RouteHandler,
    openai_facts,
)
from emulator.http.sse import SSEResponse
from handler.apis.core.api import Api
from handler.apis.messages.models import encode_model, encode_model_page
from handler.apis.openai.api import ROUTES, OpenAIApi
from handler.apis.openai.dialect import OPENAI, ORACLE, OVMS, Dialect
from handler.apis.openai.service import MODELS, OpenAIService
from handler.apis.openai.wire_format import FORMATS

PREFIXES: Mapping[str, Dialect] = {"/v1": OPENAI, "/v3": OVMS, "": ORACLE}
_CHAT = "/v1/chat/completions"


def named_facts(operation: OperationName) -> RouteFacts:
    """Return the facts of a route without a prefix, whose errors have names."""
    return openai_facts(operation, error_format=ErrorFormat.NAMED, wire_format=FORMATS[ORACLE])


def find_operation(path: str) -> OperationName:
    """Return the operation of a route under /v1: `/v1/chat/completions` is `chat`."""
    return OperationName(path.split("/")[2])


# Anthropic's clients send it with every request.
_ANTHROPIC_VERSION = "anthropic-version"


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
        answers: CallAnswers,
    ) -> None:
        self._service = service
        self._rate_limiter = rate_limiter
        self._system_status = system_status
        self._tokenize_routes = tokenize_routes
        self._answers = answers

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        routes = [
            route
            for prefix, dialect in PREFIXES.items()
            for route in self._dialect_routes(prefix, dialect)
        ]
        status = self._system_status.respond
        facts = named_facts(OperationName.SYSTEM)
        routes.append(ApiRoute("/system/status", status, methods=["GET"], facts=facts))
        return [*routes, *self._tokenize_routes.routes()]

    def _dialect_routes(self, prefix: str, dialect: Dialect) -> list[ApiRoute]:
        api = OpenAIApi(self._service, dialect)
        post = {path: self._handler(api, path) for path in ROUTES}
        get: dict[str, RouteHandler] = {
            MODELS: self._list_models,
            f"{MODELS}/{{model:path}}": self._get_model,
        }
        limited = {_CHAT: self._rate_limiter.middleware()} if dialect is ORACLE else {}
        find_facts = named_facts if dialect.named_errors else openai_facts
        return [
            ApiRoute(
                prefix + path.removeprefix("/v1"),
                handler,
                methods=[method],
                facts=find_facts(find_operation(path)),
                middleware=limited.get(path),
            )
            for method, handlers in (("POST", post), ("GET", get))
            for path, handler in handlers.items()
        ]

    async def _list_models(self, request: Request) -> Response:
        models = await self._service.list_models()
        if _ANTHROPIC_VERSION in request.headers:
            return JSON(encode_model_page(models["data"], request.query_params))
        return JSON(models)

    async def _get_model(self, request: Request) -> Response:
        model = await self._service.get_model(request.path_params["model"])
        return JSON(encode_model(model) if _ANTHROPIC_VERSION in request.headers else model)

    def _handler(self, api: Api, path: str) -> RouteHandler:
        async def handle(request: Request) -> Response | SSEResponse:
            return await self._answers.answer(request, api, path)

        return handle
