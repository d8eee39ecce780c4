"""OpenAI's routes over HTTP, in all three dialects."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from emulator.http.disconnect import while_connected
from emulator.http.request_body import read_json
from emulator.http.responses import JSON, error_response
from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR
from emulator.http.sse import KEEP_ALIVE_S, SSEResponse
from emulator.openai.system_status import Oracle
from emulator.openai.tokenize_routes import TokenizeRoutes
from handler.errors import error_info
from handler.openai.dialect import OPENAI, ORACLE, OVMS, Dialect
from handler.openai.events import DONE, error_event, stream_events
from handler.openai.service import EMBEDDINGS, ENDPOINT_SPECS, MODELS, OpenAIService

# Where the families of routes begin, instead of /v1.
PREFIXES: Mapping[str, Dialect] = {"/v1": OPENAI, "/v3": OVMS, "": ORACLE}

_Answer = Callable[[Request], Coroutine[Any, Any, Any]]


class OpenAIRoutes:
    """Turns HTTP calls into calls of the service; holds nothing between them.

    A dialect is the prefix of a route and a row of a table: the three share all code, but for what
    the oracle asks of its callers and the names of its errors.
    """

    def __init__(
        self,
        service: OpenAIService,
        oracle: Oracle,
        tokens: TokenizeRoutes,
        max_body_bytes: int,
        interval_s: float,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._service = service
        self._oracle = oracle
        self._tokens = tokens
        self._max_body_bytes = max_body_bytes
        self._interval_s = interval_s
        self._keep_alive_s = keep_alive_s

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        found = []
        for prefix, dialect in PREFIXES.items():
            for shape in ENDPOINT_SPECS:
                answer = self._generating(shape, dialect)
                if dialect is ORACLE and shape.startswith("/v1/chat"):
                    answer = self._oracle.limited(answer)
                path = prefix + shape.removeprefix("/v1")
                found.append(Route(path, self._told(answer, dialect), methods=["POST"]))
            vectors = prefix + EMBEDDINGS.removeprefix("/v1")
            answer = self._told(self._embedding(dialect), dialect)
            found.append(Route(vectors, answer, methods=["POST"]))
            models = prefix + MODELS.removeprefix("/v1")
            found.append(Route(models, self._told(self._models, dialect), methods=["GET"]))
            one = self._told(self._model, dialect)
            found.append(Route(f"{models}/{{model:path}}", one, methods=["GET"]))
        status = self._told(self._oracle.status, ORACLE)
        found.append(Route("/system/status", status, methods=["GET"]))
        return [*found, *self._tokens.routes()]

    async def _models(self, request: Request) -> Response:
        return JSON(self._service.list_models())

    async def _model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if not name:
            # A name may have a slash in it, so this route takes the list's with one at its end too.
            return RedirectResponse(request.url.path.rstrip("/"))
        return JSON(self._service.get_model(name))

    def _generating(self, shape: str, dialect: Dialect) -> _Answer:
        async def answer(request: Request) -> Response | SSEResponse:
            body = await read_json(request, self._max_body_bytes)
            call = await self._service.parse_call_async(shape, body, dialect)
            if not call.streaming:
                return JSON(await while_connected(request.receive, self._service.complete(call)))
            running = await while_connected(
                request.receive,
                self._service.open_stream(call),
                dispose=lambda running: running.abort(),
            )
            stream = stream_events(call, running, self._interval_s)
            farewell = error_event(SHUTTING_DOWN_ERROR, dialect) + DONE
            return SSEResponse(stream, running.abort, farewell, self._keep_alive_s)

        return answer

    def _embedding(self, dialect: Dialect) -> _Answer:
        async def answer(request: Request) -> Response:
            body = await read_json(request, self._max_body_bytes)
            vectors = self._service.create_embeddings(body, dialect)
            return JSON(await while_connected(request.receive, vectors))

        return answer

    def _told(self, answer: _Answer, dialect: Dialect) -> _Answer:
        """Return a route whose failures are told as the dialect tells them."""
        if not dialect.named_errors:
            return answer

        async def named(request: Request) -> Any:
            try:
                return await answer(request)
            except Exception as error:
                return error_response(error_info(error), named=True)

        return named
