"""Answer Ollama's API with the services of OpenAI's."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from engine import Priority, Slot
from handler.apis.ollama.answer import AnswerEncoder
from handler.apis.ollama.embeddings import encode_vectors, translate_embed, translate_old_embed
from handler.apis.ollama.keep_alive import read_keep_alive
from handler.apis.ollama.models import ModelDescriptions
from handler.apis.ollama.request import (
    CHAT,
    TranslatedRequest,
    read_streaming,
    translate_chat,
    translate_generate,
)
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.service import OpenAIService
from handler.apis.truncation import run_truncated
from handler.errors import InvalidRequest
from handler.generation.active_generation import ActiveGeneration
from handler.generation.offload import check_body
from handler.models.registry import ModelRegistry

# The version of Ollama whose API this is: clients refuse older ones.
API_VERSION = "0.13.0"
Route = Literal["chat", "generate"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OllamaCall:
    """A request that was read; `chat` is None if it only loads the model.

    `model` is the name that the client sent, and `served` the model's own.
    """

    route: Route
    model: str
    served: str
    request: TranslatedRequest
    chat: OpenAICall | None
    streaming: bool

    def encoder(self) -> AnswerEncoder:
        """Return a new encoder for the answer."""
        return AnswerEncoder(self.model, is_chat=self.route == "chat")


class OllamaService:
    """Answers Ollama's API without HTTP; has no state between calls."""

    def __init__(
        self, openai: OpenAIService, models: ModelRegistry, descriptions: ModelDescriptions
    ) -> None:
        self._openai = openai
        self._models = models
        self.descriptions = descriptions

    async def parse_call(
        self, route: Route, body: Mapping[str, Any], priority: Priority = Priority.INTERACTIVE
    ) -> OllamaCall:
        """Parse a body. Raises InvalidRequest or ModelNotFound, naming the client's field."""
        name = self.descriptions.find_name(body.get("model"))
        served = self._models.find(name).model_name if name is None else name
        translate = translate_chat if route == "chat" else translate_generate
        request = await check_body(body, partial(translate, body))
        streaming = read_streaming(body)
        chat = None
        if request.body is not None:
            request = _naming_model(request, served)
            try:
                chat = await self._openai.parse_call_async(
                    request.route, request.body or {}, priority=priority
                )
            except InvalidRequest as error:
                raise request.rename(error) from error
            chat.add_warnings(*request.warnings)
        return OllamaCall(route, body.get("model") or served, served, request, chat, streaming)

    async def complete(self, call: OllamaCall) -> dict[str, Any]:
        """Run a call and return its answer, without streaming. Raises EngineError."""
        if call.chat is None:
            return call.encoder().encode_no_text(await self._load_or_unload(call))
        answer = await self._run(call, self._openai.answer)
        return call.encoder().encode_answer(answer)

    async def open_stream(self, call: OllamaCall) -> ActiveGeneration:
        """Start a streamed call and wait for its first text. Raises EngineError."""
        opened = await self._run(call, self._openai.open_stream)
        # Only calls with several choices have another type.
        assert isinstance(opened, ActiveGeneration)  # noqa: S101
        return opened

    async def _load_or_unload(self, call: OllamaCall) -> str:
        """Load the model, or unload it if it is to be kept for 0 s; return which of the two."""
        engine = self._models.find(call.served).engine
        self._keep_alive(call.served, call.request.keep_alive_s)
        if call.request.keep_alive_s == 0 and engine.residency is not None:
            return "unload"
        await engine.load()
        return "load"

    def _keep_alive(self, served: str, seconds: float | None) -> None:
        """Keep a model loaded for some time after its requests, if models are unloaded at all."""
        residency = self._models.find(served).engine.residency
        if residency is not None and seconds is not None:
            residency.keep_alive(seconds)

    async def _run(
        self, call: OllamaCall, run: Callable[[OpenAICall, Slot | None], Awaitable[T]]
    ) -> T:
        """Run the chat or completion, without the oldest turns if they are too many."""
        assert call.chat is not None  # noqa: S101 - the callers have checked it
        request = call.request
        self._keep_alive(call.served, request.keep_alive_s)
        try:
            if request.truncates and request.route == CHAT:
                return await run_truncated(self._openai, call.chat, request.body or {}, run, None)
            return await run(call.chat, None)
        except InvalidRequest as error:
            raise request.rename(error) from error

    async def embed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the vectors of texts. Raises InvalidRequest, ModelNotFound or EngineError."""
        start = time.perf_counter()
        translated, warnings = translate_embed(body)
        answer = await self._create_embeddings(body, translated)
        encoded: dict[str, Any] = {
            "model": body.get("model") or self._models.default.model_name,
            "embeddings": encode_vectors(answer),
            "total_duration": round((time.perf_counter() - start) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": 0 if answer is None else answer["usage"]["prompt_tokens"],
        }
        return encoded | ({"warnings": list(warnings)} if warnings else {})

    async def embed_one(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the vector of one text, as the older route does; see `embed`."""
        translated, warnings = translate_old_embed(body)
        vectors = encode_vectors(await self._create_embeddings(body, translated))
        encoded: dict[str, Any] = {"embedding": vectors[0] if vectors else []}
        return encoded | ({"warnings": list(warnings)} if warnings else {})

    async def _create_embeddings(
        self, body: Mapping[str, Any], translated: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        name = self.descriptions.find_name(body.get("model"))
        pipeline = self._models.find(name)
        self._keep_alive(pipeline.model_name, read_keep_alive(body.get("keep_alive")))
        if translated is None:
            await pipeline.engine.load()
            return None
        return await self._openai.create_embeddings(
            {**translated, "model": name or pipeline.model_name}
        )


def _naming_model(request: TranslatedRequest, served: str) -> TranslatedRequest:
    """Return the request with the model's name in its body."""
    return TranslatedRequest(
        request.route,
        {**(request.body or {}), "model": served},
        request.keep_alive_s,
        request.truncates,
        request.warnings,
        request.names,
    )
