"""All APIs by their routes, for HTTP, the queue, jobs with `openai_route`, and batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from common.json_object import JsonObject
from common.value_description import describe_value
from engine import Usage
from handler.apis.core.api import Api, CallContext
from handler.apis.core.wire_format import WireFormat
from handler.apis.messages.api import MessagesApi
from handler.apis.ollama.api import OllamaApi
from handler.apis.ollama.models import ModelDescriptions
from handler.apis.openai import api as openai_api
from handler.apis.openai.api import OpenAIApi
from handler.apis.openai.dialect import OPENAI
from handler.apis.openai.service import OpenAIService
from handler.apis.openai.wire_format import FORMATS
from handler.apis.responses.api import ResponsesApi
from handler.apis.responses.store import ResponseStore
from handler.errors import NotFound
from handler.models.model_file import ModelFiles
from handler.models.model_name_map import CLAUDE_TO_DEFAULT, ModelNameMap
from handler.models.registry import ModelRegistry

# The routes that generate an answer, embeddings or scores from one body.
CALL_ROUTES = (
    *openai_api.ROUTES,
    *ResponsesApi.routes,
    *MessagesApi.routes,
    *OllamaApi.routes,
)
_FORMATS: Mapping[str, WireFormat] = {
    route: api.format for api in (ResponsesApi, MessagesApi, OllamaApi) for route in api.routes
}


class ApiCalls:
    """Chooses the API that answers a route; has no state between calls."""

    def __init__(
        self,
        service: OpenAIService,
        openai: OpenAIApi,
        responses: ResponsesApi,
        messages: MessagesApi,
        ollama: OllamaApi,
    ) -> None:
        self.service = service
        self.openai = openai
        self.responses = responses
        self.messages = messages
        self.ollama = ollama
        apis: tuple[Api, ...] = (openai, responses, messages, ollama)
        self._apis = {route: api for api in apis for route in api.routes}

    def find(self, route: str) -> Api:
        """Return the API that has a route. Raises NotFound."""
        api = self._apis.get(route)
        if api is None:
            raise NotFound(
                f"there is no route {describe_value(route)}, there are: {', '.join(self._apis)}",
                "openai_route",
            )
        return api

    def check(self, route: str, body: JsonObject) -> None:
        """Check a call without running it. Raises InvalidRequest or NotFound."""
        self.find(route).check(route, body)

    async def answer(self, route: str, body: JsonObject, context: CallContext) -> JsonObject:
        """Return the body of the answer to a call that is not streamed.

        Raises:
            HandlerError: the call is wrong, or has no such route or model.
            EngineError: the engine failed or is not available.
        """
        call = await self.find(route).parse(route, body, context)
        return await call.complete()

    async def run(
        self, route: str, body: JsonObject, context: CallContext
    ) -> AsyncGenerator[bytes | JsonObject, None]:
        """Yield blocks of complete events of a streamed call, or the one body of another call.

        Raises:
            HandlerError: the call is wrong, or has no such route or model.
            EngineError: the engine failed before the first event, or is not available.
        """
        call = await self.find(route).parse(route, body, context)
        if not call.streaming:
            yield await call.complete()
            return
        await call.open()
        try:
            async with aclosing(call.stream()) as outputs:
                async for output in outputs:
                    yield output
        finally:
            call.abort()


def build_calls(
    service: OpenAIService,
    models: ModelRegistry,
    names: ModelNameMap = CLAUDE_TO_DEFAULT,
    files: ModelFiles | None = None,
) -> ApiCalls:
    """Return the APIs of all routes.

    `names` chooses the model for names of Anthropic's, and `files` has the models' files.
    """
    return ApiCalls(
        service,
        OpenAIApi(service),
        ResponsesApi(service.runner, ResponseStore()),
        MessagesApi(service.runner, names),
        OllamaApi(service.runner, ModelDescriptions(models, files or ModelFiles({}))),
    )


def find_format(route: str) -> WireFormat:
    """Return how the API of a route writes errors and streams; for unknown routes, OpenAI's."""
    return _FORMATS.get(route, FORMATS[OPENAI])


def read_usage(answer: JsonObject) -> Usage:
    """Return the token counts in an answer, in the form of any of the APIs."""
    usage = answer.get("usage")
    if usage is None:
        # Ollama's; its answers that only load a model, and its older vectors, have no counts.
        return Usage(answer.get("prompt_eval_count", 0), answer.get("eval_count", 0))
    if "input_tokens" not in usage:
        details = usage.get("prompt_tokens_details") or {}
        # Embeddings and scores have no completion tokens.
        cached, output = details.get("cached_tokens", 0), usage.get("completion_tokens", 0)
        return Usage(usage["prompt_tokens"], output, cached)
    # The input tokens of a message are counted without the cached ones.
    read_from_cache = usage.get("cache_read_input_tokens", 0)
    details = usage.get("input_tokens_details") or {}
    return Usage(
        usage["input_tokens"] + read_from_cache,
        usage["output_tokens"],
        details.get("cached_tokens", read_from_cache),
    )
