"""Answer the OpenAI paths of a server without a model: the handler's own are under its endpoint."""

from __future__ import annotations

from starlette.requests import Request
from starlette.routing import Route

from handler.errors import NotFound

_METHODS = ["GET", "POST", "DELETE"]


class NoEngineRoutes:
    """Say with status 404 why these paths are not there, and which ones are."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        return [
            Route(path, self._answer, methods=_METHODS)
            for path in ("/v1/{rest:path}", "/chat/completions", "/completions", "/models")
        ]

    async def _answer(self, request: Request) -> None:
        raise NotFound(
            "this server runs a handler of yours and has no model; OpenAI calls to the handler are "
            f"under /v2/{self._endpoint}/openai/v1"
        )
