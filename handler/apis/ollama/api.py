"""Ollama's API for HTTP routes, the queue, jobs and batches."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

from common.json_object import JsonObject
from engine import Slot
from engine.runs.abortable import Abortable
from handler.apis.core.api import Api, ApiCall, CallContext
from handler.apis.core.call_runner import CallRunner
from handler.apis.core.parsed_call import ParsedCall
from handler.apis.core.truncation import run_truncated
from handler.apis.ollama.answer import AnswerEncoder, stream_lines
from handler.apis.ollama.embeddings import (
    EmbedRequest,
    embed_texts,
    encode_vectors,
    read_embed,
    read_old_embed,
)
from handler.apis.ollama.keep_alive import keep_loaded
from handler.apis.ollama.models import ModelDescriptions
from handler.apis.ollama.request import OllamaRequest, read_chat, read_generate
from handler.apis.ollama.wire_format import FORMAT
from handler.generation.active_generation import ActiveGeneration
from handler.generation.offload import check_body
from handler.models.registry import ResolvedModel

# The version of Ollama whose API this is: clients refuse older ones.
API_VERSION = "0.13.0"
CHAT, GENERATE, EMBED, OLD_EMBED = "/api/chat", "/api/generate", "/api/embed", "/api/embeddings"
_TEXT_READERS = {CHAT: read_chat, GENERATE: read_generate}
_EMBED_READERS = {EMBED: read_embed, OLD_EMBED: read_old_embed}
T = TypeVar("T")


class OllamaApi(Api):
    """Answers calls of Ollama's API; has no state between calls.

    A body without `stream` is not streamed: that Ollama streams by default is a fact of its HTTP
    routes, and jobs and batches have no such default.
    """

    format = FORMAT
    routes = (*_TEXT_READERS, *_EMBED_READERS)

    def __init__(self, runner: CallRunner, descriptions: ModelDescriptions) -> None:
        self._runner = runner
        self.descriptions = descriptions

    def check(self, route: str, body: JsonObject) -> None:
        """Check a body without running it. Raises InvalidRequest or ModelNotFound."""
        self._read(route, body, self._resolve(body))

    async def parse(self, route: str, body: JsonObject, context: CallContext) -> ApiCall:
        """Parse a body. Raises InvalidRequest or ModelNotFound, naming the client's field."""
        model = self._resolve(body)
        request = await check_body(body, partial(self._read, route, body, model))
        name = body.get("model") or model.name
        if isinstance(request, EmbedRequest):
            return _EmbedCall(request, name, route, context)
        encoder = AnswerEncoder(name, is_chat=route == CHAT)
        call = None if request.call is None else request.call.in_context(context)
        return _TextCall(self._runner, model, request, call, encoder, context)

    def _resolve(self, body: JsonObject) -> ResolvedModel:
        name = body.get("model")
        return self._runner.models.resolve(None if name == "" else name)

    def _read(
        self, route: str, body: JsonObject, model: ResolvedModel
    ) -> OllamaRequest | EmbedRequest:
        if route in _TEXT_READERS:
            return _TEXT_READERS[route](body, model, self._runner.defaults)
        return _EMBED_READERS[route](body, model)


class _TextCall(ApiCall):
    """A chat or a text to generate; a request that only loads the model has no `call`."""

    def __init__(
        self,
        runner: CallRunner,
        model: ResolvedModel,
        request: OllamaRequest,
        call: ParsedCall | None,
        encoder: AnswerEncoder,
        context: CallContext,
    ) -> None:
        super().__init__(FORMAT, context, streaming=call is not None and call.streaming)
        self._runner = runner
        self._engine = model.pipeline.engine
        self._request = request
        self._call = call
        self._encoder = encoder

    async def complete(self) -> JsonObject:
        if self._call is None:
            return self._encoder.encode_no_text(await self._load_or_unload())
        return self._encoder.encode_answer(await self._run(self._call, self._runner.answer))

    async def _open(self) -> Abortable:
        assert self._call is not None  # noqa: S101 - a request without a text is not streamed
        return await self._run(self._call, self._runner.open)

    def stream(self) -> AsyncGenerator[bytes, None]:
        generation, context = cast("ActiveGeneration", self._opened), self._context
        return stream_lines(generation, self._encoder, context.interval_s, context.part_chars)

    async def _load_or_unload(self) -> str:
        """Load the model, or unload it if it is to be kept for 0 s; return which of the two."""
        engine, seconds = self._engine, self._request.keep_alive_s
        keep_loaded(engine, seconds)
        if seconds == 0 and engine.residency is not None:
            return "unload"
        await engine.load()
        return "load"

    async def _run(
        self, call: ParsedCall, run: Callable[[ParsedCall, Slot | None], Awaitable[T]]
    ) -> T:
        """Run the call; a chat without the oldest turns if they are too many."""
        keep_loaded(self._engine, self._request.keep_alive_s)
        if self._request.truncates:
            return await run_truncated(call, run, self._context.slot)
        return await run(call, self._context.slot)


class _EmbedCall(ApiCall):
    """Texts to embed; `model` is the name that the client sent."""

    def __init__(self, request: EmbedRequest, model: str, route: str, context: CallContext) -> None:
        super().__init__(FORMAT, context, streaming=False)
        self._request = request
        self._model = model
        self._route = route

    async def complete(self) -> JsonObject:
        """Return the vectors of the texts. Raises InvalidRequest or EngineError."""
        start, request, context = time.perf_counter(), self._request, self._context
        engine = request.model.pipeline.engine
        keep_loaded(engine, request.keep_alive_s)
        answer, warnings = None, context.warnings
        if request.call is None:
            await engine.load()
        else:
            answer = await embed_texts(
                request.call, engine, context.priority, context.slot, truncates=request.truncates
            )
            warnings = (*answer.get("warnings", ()), *warnings)
        vectors = encode_vectors(answer)
        if self._route == OLD_EMBED:
            encoded: dict[str, Any] = {"embedding": vectors[0] if vectors else []}
        else:
            encoded = {
                "model": self._model,
                "embeddings": vectors,
                "total_duration": round((time.perf_counter() - start) * 1e9),
                "load_duration": 0,
                "prompt_eval_count": 0 if answer is None else answer["usage"]["prompt_tokens"],
            }
        return encoded | ({"warnings": list(warnings)} if warnings else {})
