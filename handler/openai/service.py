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
from engine.reasoning import are_opened
from engine.request import Chat
from engine.schema_grammar import why_not
from handler.active_generation import Running, log_warnings
from handler.completed_answer import Answer
from handler.errors import NotFound
from handler.models import Models
from handler.offload import checked
from handler.openai.call import Codec
from handler.openai.chat import CHAT
from handler.openai.completions import COMPLETIONS
from handler.openai.dialect import OPENAI, Dialect
from handler.openai.echo import echo_of, text_of
from handler.openai.embeddings import EmbeddingsCall
from handler.openai.endpoint_spec import Shape
from handler.openai.events import DONE, error_event, events
from handler.openai.models import describe_model
from handler.openai.parallel import Finished, Several, run_all
from handler.options import PLAIN, OptionsReader
from handler.pipeline import Pipeline
from handler.sampling import shown

__all__ = ["DONE", "EMBEDDINGS", "MODELS", "SHAPES", "OpenAIService", "error_event", "events"]

logger = logging.getLogger(__name__)

SHAPES: Mapping[str, Shape] = {"/v1/completions": COMPLETIONS, "/v1/chat/completions": CHAT}
EMBEDDINGS = "/v1/embeddings"
MODELS = "/v1/models"


class OpenAIService:
    """Answers OpenAI calls from their models' pipelines; holds nothing between them.

    `max_tokens` is what DEFAULT_MAX_TOKENS sets where a call says nothing, None for no limit but
    the context; `stream_several` is STREAM_MULTI_PROMPT.
    """

    def __init__(
        self,
        models: Pipeline | Models,
        options: OptionsReader = PLAIN,
        *,
        max_tokens: int | None = None,
        stream_several: bool = False,
    ) -> None:
        self._models = models if isinstance(models, Models) else Models(models)
        self._options = options
        self._max_tokens = max_tokens
        self._stream_several = stream_several
        self._created = int(time.time())

    def codec(
        self,
        route: str,
        body: Mapping[str, Any],
        dialect: Dialect = OPENAI,
        priority: Priority = Priority.INTERACTIVE,
    ) -> Codec:
        """Return what a call to a route asks for. Raises InvalidRequest or NotFound."""
        shape = SHAPES.get(route)
        if shape is None:
            known = ", ".join([*SHAPES, EMBEDDINGS, MODELS])
            raise NotFound(f"there is no route {shown(route)}, there are: {known}", "openai_route")
        pipeline = self._models.asked(body)
        return Codec(
            shape,
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

    async def read(
        self,
        route: str,
        body: Mapping[str, Any],
        dialect: Dialect = OPENAI,
        priority: Priority = Priority.INTERACTIVE,
    ) -> Codec:
        """Return what `codec` does, without holding up the event loop for a large body."""
        return await checked(body, partial(self.codec, route, body, dialect, priority))

    def check(self, route: str, body: Mapping[str, Any]) -> None:
        """Find what is wrong with a call that nobody answers yet.

        Raises:
            InvalidRequest: naming the parameter that is wrong.
            NotFound: there is no such route, or no such model.
        """
        if route == EMBEDDINGS:
            self._embeddings(body, self._models.asked(body), OPENAI)
        elif route != MODELS:
            self.codec(route, body)

    async def plain(
        self, route: str, body: Mapping[str, Any], slot: Slot | None = None
    ) -> dict[str, Any] | None:
        """Return the body of a call that generates no text, None of one to another route.

        Raises:
            InvalidRequest: naming the parameter that is wrong.
            EngineError: what kept it from being answered.
        """
        if route == EMBEDDINGS:
            return await self.embeddings(body, slot=slot)
        return self.models() if route == MODELS else None

    async def embeddings(
        self, body: Mapping[str, Any], dialect: Dialect = OPENAI, slot: Slot | None = None
    ) -> dict[str, Any]:
        """Return the vectors of texts. Raises InvalidRequest, ModelNotFound or EngineError."""
        pipeline = self._models.asked(body)
        call = await checked(body, partial(self._embeddings, body, pipeline, dialect))
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

    def models(self) -> dict[str, Any]:
        """Return the list of all names of models, the default's first, and of adapters."""
        return {"object": "list", "data": [self.model(name) for name in self._models.names]}

    def model(self, name: str) -> dict[str, Any]:
        """Return one model. Raises ModelNotFound."""
        return describe_model(name, self._models.find(name), self._created)

    async def whole(self, codec: Codec, slot: Slot | None = None) -> dict[str, Any]:
        """Return the body of a call that is not streamed. Raises EngineError."""
        await self._prepare(codec)
        if codec.parameters.sampling.max_tokens == 0:
            return codec.whole(*await self._nothing(codec))
        if len(codec.requests) == 1:
            answers = [await self._pipeline(codec).run(codec.request, slot)]
        else:
            if slot is not None:
                # They take one each, as they come.
                slot.release()
            answers = await run_all(self._pipeline(codec), codec.requests)
        self._see_thoughts(codec)
        return codec.whole(*answers)

    async def open(self, codec: Codec, slot: Slot | None = None) -> Running | Several | Finished:
        """Start a streamed call and wait for its first text. Raises EngineError."""
        await self._prepare(codec)
        if codec.parameters.sampling.max_tokens == 0:
            return Finished(await self._nothing(codec))
        opened: Running | Several
        if len(codec.requests) == 1:
            opened = await self._pipeline(codec).open(codec.request, slot)
        else:
            if slot is not None:
                slot.release()
            opened = await Several(self._pipeline(codec), codec.requests).open()
        self._see_thoughts(codec)
        return opened

    def _pipeline(self, codec: Codec) -> Pipeline:
        return self._models.find(codec.model)

    async def _prepare(self, codec: Codec) -> None:
        """Find out what only the engine knows and the answer depends on. Raises EngineError."""
        manner, engine = codec.manner, self._pipeline(codec).engine
        if codec.particular:
            capabilities = await engine.ready()
            unheld = None
            if (schema := codec.manner.schema) is not None and capabilities.json_schema:
                # A large one takes a while, in which others are answered.
                unheld = await asyncio.to_thread(why_not, schema)
            codec.suit(capabilities, unheld)
            if capabilities.infill and (suffix := codec.parameters.suffix):
                texts = [await text_of(prompt, engine) for prompt in codec.prompts]
                codec.fill([await engine.infill(text, suffix) for text in texts])
        [first, *_] = codec.prompts
        if isinstance(first, Chat) and first.template_kwargs:
            with suppress(UnsupportedParameter):
                rendered = await engine.render(first)
                codec.manner = replace(manner, thinking=are_opened(rendered))
        if codec.parameters.echo:
            codec.echoes = [
                await echo_of(prompt, engine, pieces=codec.parameters.logprobs is not None)
                for prompt in codec.prompts
            ]

    def _see_thoughts(self, codec: Codec) -> None:
        """Read answers as begun in the model's thoughts where its template always does that.

        After they have been started, for then the engine has told what it can do. Where a call has
        words of its own for the template, `_prepare` has looked at what it makes of them.
        """
        able = self._pipeline(codec).engine.capabilities
        [first, *_] = codec.prompts
        if able is None or not able.opens_thoughts or not isinstance(first, Chat):
            return
        if not first.template_kwargs:
            codec.manner = replace(codec.manner, thinking=True)

    async def _nothing(self, codec: Codec) -> list[Answer]:
        """Return the answers of no tokens, which only count their prompts' (R8)."""
        log_warnings(codec.request, codec.request.warnings)
        answers = []
        for prompt in codec.prompts:
            tokens = 0
            if isinstance(prompt, tuple):
                tokens = len(prompt)
            elif isinstance(prompt, str):
                tokens = len(await self._pipeline(codec).engine.tokenize(prompt))
            answer = Answer(
                id=codec.id,
                model=codec.model,
                created=int(time.time()),
                text="",
                deltas=(),
                finish=Finish(reason=FinishReason.LENGTH, usage=Usage(tokens, 0)),
                streaming=codec.streaming,
                warnings=codec.request.warnings,
            )
            answers += [answer] * codec.parameters.candidates
        return answers
