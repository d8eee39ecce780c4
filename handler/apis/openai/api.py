"""OpenAI's API for HTTP routes, the queue, jobs and batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import cast

from common.json_object import JsonObject
from engine.runs.abortable import Abortable
from handler.apis.core.api import Api, ApiCall, CallContext
from handler.apis.core.parallel import CompletedGenerations, ParallelGenerations
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.dialect import OPENAI, Dialect
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import (
    EMBEDDINGS,
    ENDPOINT_SPECS,
    MODELS,
    SCORING_ROUTES,
    OpenAIService,
)
from handler.apis.openai.wire_format import FORMATS
from handler.generation.active_generation import ActiveGeneration
from handler.generation.offload import check_body

ROUTES = (*ENDPOINT_SPECS, EMBEDDINGS, *SCORING_ROUTES)


class OpenAIApi(Api):
    """Chats, completions, embeddings, scores and the list of models, in one dialect."""

    routes = (*ROUTES, MODELS)

    def __init__(self, service: OpenAIService, dialect: Dialect = OPENAI) -> None:
        self.format = FORMATS[dialect]
        self._service = service
        self._dialect = dialect

    def check(self, route: str, body: JsonObject) -> None:
        """Check a call without running it. Raises InvalidRequest or NotFound."""
        self._service.check_call(route, body)

    async def parse(self, route: str, body: JsonObject, context: CallContext) -> ApiCall:
        """Parse a body; one of a route that generates no text is parsed when the call runs."""
        if route not in ENDPOINT_SPECS:
            return _DirectCall(self._service, self._dialect, route, body, context)
        parse = partial(self._service.parse_call, route, body, self._dialect)
        call = await check_body(body, parse)
        call.set_context(context)
        return _GeneratingCall(self._service, call, context)


class _GeneratingCall(ApiCall):
    """A chat or a completion."""

    def __init__(self, service: OpenAIService, call: OpenAICall, context: CallContext) -> None:
        super().__init__(FORMATS[call.dialect], context, streaming=call.streaming)
        self._service = service
        self._call = call

    async def complete(self) -> JsonObject:
        return await self._service.complete(self._call, self._context.slot)

    async def _open(self) -> Abortable:
        return await self._service.open_stream(self._call, self._context.slot)

    def stream(self) -> AsyncGenerator[bytes, None]:
        opened = cast("ActiveGeneration | ParallelGenerations | CompletedGenerations", self._opened)
        context = self._context
        return stream_events(self._call, opened, context.interval_s, context.part_chars)


class _DirectCall(ApiCall):
    """A call that generates no text: embeddings, scores or the list of models."""

    def __init__(
        self,
        service: OpenAIService,
        dialect: Dialect,
        route: str,
        body: JsonObject,
        context: CallContext,
    ) -> None:
        super().__init__(FORMATS[dialect], context, streaming=False)
        self._service = service
        self._dialect = dialect
        self._route = route
        self._body = body

    async def complete(self) -> JsonObject:
        """Parse and run the call. Raises InvalidRequest, ModelNotFound or EngineError."""
        context = self._context
        answer = await self._service.answer_without_generation(
            self._route, self._body, self._dialect, context.slot, context.priority
        )
        if context.warnings:
            warnings = [*answer.get("warnings", ()), *context.warnings]
            return {**answer, "warnings": warnings}
        return answer
