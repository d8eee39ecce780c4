"""OpenAI's routes, without HTTP: what the emulator and a job with `openai_route` share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from engine import Finish, FinishReason, Priority, Slot, Usage
from engine.errors import UnsupportedParameter
from engine.reasoning import starts_in_reasoning
from engine.request import Chat
from engine.schema_grammar import find_schema_violation
from handler.active_generation import ActiveGeneration, log_warnings
from handler.completed_answer import CompletedAnswer
from handler.errors import NotFound
from handler.models import ModelRegistry
from handler.offload import check_body
from handler.openai.call import OpenAICall
from handler.openai.chat import CHAT
from handler.openai.completions import COMPLETIONS
from handler.openai.dialect import OPENAI, Dialect
from handler.openai.echo import create_echo, prompt_text
from handler.openai.embeddings import EmbeddingsCall
from handler.openai.endpoint_spec import EndpointSpec
from handler.openai.models import describe_model
from handler.openai.parallel import CompletedGenerations, ParallelGenerations, run_all
from handler.options import NO_DEFAULTS, OptionsReader
from handler.pipeline import Pipeline
from handler.sampling import describe_value

logger = logging.getLogger(__name__)

ENDPOINT_SPECS: Mapping[str, EndpointSpec] = {
    "/v1/completions": COMPLETIONS,
    "/v1/chat/completions": CHAT,
}
EMBEDDINGS = "/v1/embeddings"
MODELS = "/v1/models"


class OpenAIService:
    """Answers OpenAI calls from their models' pipelines; holds nothing between them.

    `max_tokens` is what DEFAULT_MAX_TOKENS sets where a call says nothing, None for no limit but
    the context; `stream_several` is STREAM_MULTI_PROMPT.
    """

    def __init__(
        self,
        models: Pipeline | ModelRegistry,
        options: OptionsReader = NO_DEFAULTS,
        *,
        max_tokens: int | None = None,
        stream_several: bool = False,
    ) -> None:
        self._models = models if isinstance(models, ModelRegistry) else ModelRegistry(models)
        self._options = options
        self._max_tokens = max_tokens
        self._stream_several = stream_several
        self._created = int(time.time())

    def parse_call(
        self,
        route: str,
        body: Mapping[str, Any],
        dialect: Dialect = OPENAI,
        priority: Priority = Priority.INTERACTIVE,
    ) -> OpenAICall:
        """Return what a call to a route asks for. Raises InvalidRequest or NotFound."""
        spec = ENDPOINT_SPECS.get(route)
        if spec is None:
            known = ", ".join([*ENDPOINT_SPECS, EMBEDDINGS, MODELS])
            raise NotFound(
                f"there is no route {describe_value(route)}, there are: {known}", "openai_route"
            )
        pipeline = self._models.find_for_body(body)
        return OpenAICall(
            spec,
            body,
            pipeline.model_name,
            self._max_tokens,
            self._options,
            dialect,
            stream_several=self._stream_several,
            priority=priority,
            adapters=pipeline.adapters,
            aliases=pipeline.aliases,
        )

    async def parse_call_async(
        self,
        route: str,
        body: Mapping[str, Any],
        dialect: Dialect = OPENAI,
        priority: Priority = Priority.INTERACTIVE,
    ) -> OpenAICall:
        """Return what `codec` does, without holding up the event loop for a large body."""
        return await check_body(body, partial(self.parse_call, route, body, dialect, priority))

    def check_call(self, route: str, body: Mapping[str, Any]) -> None:
        """Find what is wrong with a call that nobody answers yet.

        Raises:
            InvalidRequest: naming the parameter that is wrong.
            NotFound: there is no such route, or no such model.
        """
        if route == EMBEDDINGS:
            self._embeddings(body, self._models.find_for_body(body), OPENAI)
        elif route != MODELS:
            self.parse_call(route, body)

    async def answer_without_generation(
        self, route: str, body: Mapping[str, Any], slot: Slot | None = None
    ) -> dict[str, Any] | None:
        """Return the body of a call that generates no text, None of one to another route.

        Raises:
            InvalidRequest: naming the parameter that is wrong.
            EngineError: what kept it from being answered.
        """
        if route == EMBEDDINGS:
            return await self.create_embeddings(body, slot=slot)
        return self.list_models() if route == MODELS else None

    async def create_embeddings(
        self, body: Mapping[str, Any], dialect: Dialect = OPENAI, slot: Slot | None = None
    ) -> dict[str, Any]:
        """Return the vectors of texts. Raises InvalidRequest, ModelNotFound or EngineError."""
        pipeline = self._models.find_for_body(body)
        call = await check_body(body, partial(self._embeddings, body, pipeline, dialect))
        for warning in call.warnings:
            logger.warning("embeddings: %s", warning)
        engine = pipeline.engine
        call.check(await engine.ready())
        priority = Priority.INTERACTIVE if slot is None else Priority.JOB
        return call.answer(await engine.embed(call.texts, priority, slot))

    def _embeddings(
        self, body: Mapping[str, Any], pipeline: Pipeline, dialect: Dialect
    ) -> EmbeddingsCall:
        return EmbeddingsCall.read(
            body, pipeline.model_name, dialect, pipeline.adapters, pipeline.aliases
        )

    def list_models(self) -> dict[str, Any]:
        """Return the list of all names of models, the default's first, and of adapters."""
        return {"object": "list", "data": [self.get_model(name) for name in self._models.names]}

    def get_model(self, name: str) -> dict[str, Any]:
        """Return one model. Raises ModelNotFound."""
        return describe_model(name, self._models.find(name), self._created)

    async def complete(self, call: OpenAICall, slot: Slot | None = None) -> dict[str, Any]:
        """Return the body of a call that is not streamed. Raises EngineError."""
        await self._prepare(call)
        if call.parameters.sampling.max_tokens == 0:
            return call.encode_response(*await self._nothing(call))
        if len(call.requests) == 1:
            answers = [await self._pipeline(call).run(call.request, slot)]
        else:
            if slot is not None:
                # They take one each, as they come.
                slot.release()
            answers = await run_all(self._pipeline(call), call.requests)
        self._see_thoughts(call)
        return call.encode_response(*answers)

    async def open_stream(
        self, call: OpenAICall, slot: Slot | None = None
    ) -> ActiveGeneration | ParallelGenerations | CompletedGenerations:
        """Start a streamed call and wait for its first text. Raises EngineError."""
        await self._prepare(call)
        if call.parameters.sampling.max_tokens == 0:
            return CompletedGenerations(await self._nothing(call))
        opened: ActiveGeneration | ParallelGenerations
        if len(call.requests) == 1:
            opened = await self._pipeline(call).open(call.request, slot)
        else:
            if slot is not None:
                slot.release()
            opened = await ParallelGenerations(self._pipeline(call), call.requests).open()
        self._see_thoughts(call)
        return opened

    def _pipeline(self, call: OpenAICall) -> Pipeline:
        return self._models.find(call.model)

    async def _prepare(self, call: OpenAICall) -> None:
        """Find out what only the engine knows and the answer depends on. Raises EngineError."""
        response_mode, engine = call.response_mode, self._pipeline(call).engine
        if call.needs_capabilities:
            capabilities = await engine.ready()
            unheld = None
            if (schema := call.response_mode.schema) is not None and capabilities.json_schema:
                # A large one takes a while, in which others are answered.
                unheld = await asyncio.to_thread(find_schema_violation, schema)
            call.adapt_to(capabilities, unheld)
            if capabilities.infill and (suffix := call.parameters.suffix):
                texts = [await prompt_text(prompt, engine) for prompt in call.prompts]
                call.replace_prompts([await engine.infill(text, suffix) for text in texts])
        [first, *_] = call.prompts
        if isinstance(first, Chat) and first.template_kwargs:
            with suppress(UnsupportedParameter):
                rendered = await engine.render(first)
                call.response_mode = replace(
                    response_mode, starts_in_reasoning=starts_in_reasoning(rendered)
                )
        if call.parameters.echo:
            call.echoes = [
                await create_echo(prompt, engine, pieces=call.parameters.logprobs is not None)
                for prompt in call.prompts
            ]

    def _see_thoughts(self, call: OpenAICall) -> None:
        """Read answers as begun in the model's thoughts where its template always does that.

        After they have been started, for then the engine has told what it can do. Where a call has
        words of its own for the template, `_prepare` has looked at what it makes of them.
        """
        able = self._pipeline(call).engine.capabilities
        [first, *_] = call.prompts
        if able is None or not able.opens_thoughts or not isinstance(first, Chat):
            return
        if not first.template_kwargs:
            call.response_mode = replace(call.response_mode, starts_in_reasoning=True)

    async def _nothing(self, call: OpenAICall) -> list[CompletedAnswer]:
        """Return the answers of no tokens, which only count their prompts' (R8)."""
        log_warnings(call.request, call.request.warnings)
        answers = []
        for prompt in call.prompts:
            tokens = 0
            if isinstance(prompt, tuple):
                tokens = len(prompt)
            elif isinstance(prompt, str):
                tokens = len(await self._pipeline(call).engine.tokenize(prompt))
            answer = CompletedAnswer(
                id=call.id,
                model=call.model,
                created=int(time.time()),
                text="",
                deltas=(),
                finish=Finish(reason=FinishReason.LENGTH, usage=Usage(tokens, 0)),
                streaming=call.streaming,
                warnings=call.request.warnings,
            )
            answers += [answer] * call.parameters.candidates
        return answers
