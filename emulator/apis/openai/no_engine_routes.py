"""The OpenAI paths of a server that has no model."""

from __future__ import annotations

from starlette.requests import Request

from emulator.apis.messages.routes import MESSAGES_FACTS
from emulator.apis.openai.routes import named_facts
from emulator.apis.responses.routes import RESPONSES_FACTS
from emulator.http.error_format import ErrorFormat
from emulator.http.route_facts import ApiRoute, OperationName, openai_facts
from handler.apis.messages.api import MESSAGES
from handler.apis.responses.api import RESPONSES
from handler.errors import NotFound

_METHODS = ["GET", "POST", "DELETE"]


class NoEngineRoutes:
    """Answers these paths with status 404, and names the path of the workers' OpenAI calls."""

    def __init__(self, endpoint: str, *, has_handler: bool) -> None:
        self._endpoint = endpoint
        self._has_handler = has_handler

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        table = [
            (MESSAGES, MESSAGES_FACTS),
            (f"{MESSAGES}/{{rest:path}}", MESSAGES_FACTS),
            (RESPONSES, RESPONSES_FACTS),
            (f"{RESPONSES}/{{rest:path}}", RESPONSES_FACTS),
            ("/v1/{rest:path}", openai_facts(None)),
            ("/v3/{rest:path}", openai_facts(None)),
            ("/api/{rest:path}", openai_facts(None, error_format=ErrorFormat.RUNPOD)),
            ("/chat/completions", named_facts(OperationName.CHAT)),
            ("/completions", named_facts(OperationName.COMPLETIONS)),
            ("/models", named_facts(OperationName.MODELS)),
        ]
        return [
            ApiRoute(path, self._answer, methods=_METHODS, facts=facts) for path, facts in table
        ]

    async def _answer(self, request: Request) -> None:
        if not self._has_handler:
            raise NotFound(
                "this server has no model, because LOCAL_WORKER=off or ENGINE=none is set; "
                "MODEL_PATH names one, and OpenAI calls to workers are under "
                f"/v2/{self._endpoint}/openai/v1"
            )
        raise NotFound(
            "this server runs a handler of yours and has no model; OpenAI calls to the handler are "
            f"under /v2/{self._endpoint}/openai/v1; if the handler calls a server of its own here, "
            "such as vLLM, this server has its port and needs another one (--port)"
        )
