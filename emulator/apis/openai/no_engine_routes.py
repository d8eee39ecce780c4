"""The OpenAI paths of a server that has no model."""

from __future__ import annotations

from starlette.requests import Request
from starlette.routing import Route

from handler.errors import NotFound

_METHODS = ["GET", "POST", "DELETE"]


class NoEngineRoutes:
    """Answers these paths with status 404, and names the path of the handler's OpenAI calls."""

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
