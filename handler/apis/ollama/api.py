"""Ollama's API for HTTP routes, jobs and batches: OpenAI's services in its form."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from engine import Slot
from engine.abortable import Abortable
from handler.apis.core.api import Api, ApiCall, CallContext
from handler.apis.ollama.answer import AnswerEncoder, stream_lines
from handler.apis.ollama.embeddings import encode_vectors, translate_embed, translate_old_embed
from handler.apis.ollama.keep_alive import keep_loaded, read_keep_alive
from handler.apis.ollama.models import ModelDescriptions
from handler.apis.ollama.request import (
    CHAT,
    TranslatedRequest,
    translate_chat,
    translate_generate,
)
from handler.apis.ollama.wire_format import FORMAT
from handler.apis.openai.api import apply_context
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.service import EMBEDDINGS, OpenAIService
from handler.apis.openai.truncation import run_truncated
from handler.generation.active_generation import ActiveGeneration
from handler.generation.offload import check_body
from handler.models.registry import ModelRegistry

# The version of Ollama whose API this is: clients refuse older ones.
API_VERSION = "0.13.0"
CHAT_ROUTE, GENERATE, EMBED, OLD_EMBED = (
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
)
_TRANSLATORS = {CHAT_ROUTE: translate_chat, GENERATE: translate_generate}
T = TypeVar("T")


class OllamaApi(Api):
    """Answers Ollama's API with the service of OpenAI's; has no state between calls.

    A body without `stream` is not streamed: that Ollama streams by default is a fact of its HTTP
    routes, and jobs and batches have no such default.
    """

    format = FORMAT
    routes = (CHAT_ROUTE, GENERATE, EMBED, OLD_EMBED)

    def __init__(
        self, openai: OpenAIService, models: ModelRegistry, descriptions: ModelDescriptions
    ) -> None:
        self._openai = openai
        self._models = models
        self.descriptions = descriptions

    def check(self, route: str, body: Mapping[str, Any]) -> None:
        """Check a body without running it. Raises InvalidRequest or ModelNotFound."""
        name = self.descriptions.find_name(body.get("model"))
        served = self._models.find(name).model_name if name is None else name
        if route in _TRANSLATORS:
            request = _TRANSLATORS[route](body)
            if request.body is not None:
                with request.field_names.in_errors():
                    self._openai.check_call(request.route, {**request.body, "model": served})
            return
        read_keep_alive(body.get("keep_alive"))
        translated, _ = (translate_embed if route == EMBED else translate_old_embed)(body)
        if translated is not None:
            self._openai.check_call(EMBEDDINGS, {**translated, "model": served})

    async def parse(self, route: str, body: Mapping[str, Any], context: CallContext) -> ApiCall:
        """Parse a body; one of a route for embeddings is parsed when the call runs.

        Raises:
            InvalidRequest: naming the client's field that is wrong.
            ModelNotFound: no model has that name.
        """
        if route not in _TRANSLATORS:
            return _EmbedCall(self._openai, self._models, self.descriptions, route, body, context)
        name = self.descriptions.find_name(body.get("model"))
        served = self._models.find(name).model_name if name is None else name
        request = await check_body(body, partial(_TRANSLATORS[route], body))
        chat = None
        if request.body is not None:
            request = _naming_model(request, served)
            with request.field_names.in_errors():
                chat = await self._openai.parse_call_async(
                    request.route, request.body or {}, priority=context.priority
                )
            apply_context(chat, context)
            chat.add_warnings(*request.warnings)
        encoder = AnswerEncoder(body.get("model") or served, is_chat=route == CHAT_ROUTE)
        return _OllamaCall(self._openai, self._models, served, request, chat, encoder, context)


class _OllamaCall(ApiCall):
    """A chat or a text to generate; `chat` is None if the call only loads the model.

    `served` is the model's own name.
    """

    def __init__(
        self,
        openai: OpenAIService,
        models: ModelRegistry,
        served: str,
        request: TranslatedRequest,
        chat: OpenAICall | None,
        encoder: AnswerEncoder,
        context: CallContext,
    ) -> None:
        super().__init__(FORMAT, context, streaming=chat is not None and chat.streaming)
        self._openai = openai
        self._models = models
        self._served = served
        self._request = request
        self._chat = chat
        self._encoder = encoder

    async def complete(self) -> dict[str, Any]:
        if self._chat is None:
            return self._encoder.encode_no_text(await self._load_or_unload())
        return self._encoder.encode_answer(await self._run(self._chat, self._openai.answer))

    async def _open(self) -> Abortable:
        return await self._run(self._streamed_chat(), self._openai.open_stream)

    def stream(self) -> AsyncGenerator[bytes, None]:
        # Only calls with several choices have another type.
        generation = cast("ActiveGeneration", self._opened)
        context = self._context
        return stream_lines(
            self._streamed_chat(),
            generation,
            self._encoder,
            context.interval_s,
            context.part_chars,
        )

    def _streamed_chat(self) -> OpenAICall:
        assert self._chat is not None  # noqa: S101 - a call without a chat is not streamed
        return self._chat

    async def _load_or_unload(self) -> str:
        """Load the model, or unload it if it is to be kept for 0 s; return which of the two."""
        engine, seconds = self._models.find(self._served).engine, self._request.keep_alive_s
        keep_loaded(engine, seconds)
        if seconds == 0 and engine.residency is not None:
            return "unload"
        await engine.load()
        return "load"

    async def _run(
        self, chat: OpenAICall, run: Callable[[OpenAICall, Slot | None], Awaitable[T]]
    ) -> T:
        """Run the chat or completion, without the oldest turns if they are too many."""
        request, slot = self._request, self._context.slot
        keep_loaded(self._models.find(self._served).engine, request.keep_alive_s)
        with request.field_names.in_errors():
            if request.truncates and request.route == CHAT:
                return await run_truncated(self._openai, chat, request.body or {}, run, slot)
            return await run(chat, slot)


class _EmbedCall(ApiCall):
    """Texts to embed."""

    def __init__(
        self,
        openai: OpenAIService,
        models: ModelRegistry,
        descriptions: ModelDescriptions,
        route: str,
        body: Mapping[str, Any],
        context: CallContext,
    ) -> None:
        super().__init__(FORMAT, context, streaming=False)
        self._openai = openai
        self._models = models
        self._descriptions = descriptions
        self._route = route
        self._body = body

    async def complete(self) -> dict[str, Any]:
        """Return the vectors of the texts. Raises InvalidRequest, ModelNotFound or EngineError."""
        encode = self._embed if self._route == EMBED else self._embed_one
        encoded, warnings = await encode(self._body)
        warnings = (*warnings, *self._context.warnings)
        return encoded | ({"warnings": list(warnings)} if warnings else {})

    async def _embed(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
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
        return encoded, warnings

    async def _embed_one(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        translated, warnings = translate_old_embed(body)
        vectors = encode_vectors(await self._create_embeddings(body, translated))
        return {"embedding": vectors[0] if vectors else []}, warnings

    async def _create_embeddings(
        self, body: Mapping[str, Any], translated: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        name = self._descriptions.find_name(body.get("model"))
        pipeline = self._models.find(name)
        keep_loaded(pipeline.engine, read_keep_alive(body.get("keep_alive")))
        if translated is None:
            await pipeline.engine.load()
            return None
        context = self._context
        return await self._openai.create_embeddings(
            {**translated, "model": name or pipeline.model_name},
            slot=context.slot,
            priority=context.priority,
        )


def _naming_model(request: TranslatedRequest, served: str) -> TranslatedRequest:
    """Return the request with the model's name in its body."""
    return replace(request, body={**(request.body or {}), "model": served})
