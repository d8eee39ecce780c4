"""The OpenAI API without HTTP, shared by the emulator, jobs with `openai_route`, and batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from common.value_description import describe_value
from engine import Finish, FinishReason, Priority, Slot, Usage
from engine.errors import PromptTooLong, RequestRejected
from engine.request import Chat
from engine.schema.grammar import find_schema_violation
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.apis.openai.completions import COMPLETIONS
from handler.apis.openai.dialect import OPENAI, Dialect
from handler.apis.openai.echo import create_echo, prompt_text
from handler.apis.openai.embeddings import EmbeddingsCall
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.apis.openai.models import describe_model
from handler.apis.openai.parallel import CompletedGenerations, ParallelGenerations, run_all
from handler.apis.openai.relevance import compute_relevance
from handler.apis.openai.rerank import RerankCall
from handler.apis.openai.score import ScoreCall
from handler.errors import NotFound
from handler.generation.active_generation import ActiveGeneration, log_warnings
from handler.generation.completed_answer import CompletedAnswer
from handler.generation.offload import check_body, run_check
from handler.input.options import NO_DEFAULTS, OptionsReader
from handler.models.registry import ModelRegistry
from handler.pipeline import Pipeline
from handler.reply.reply import Reply
from handler.reply.reply_format import ToolForm

logger = logging.getLogger(__name__)

ENDPOINT_SPECS: Mapping[str, EndpointSpec] = {
    "/v1/completions": COMPLETIONS,
    "/v1/chat/completions": CHAT,
}
EMBEDDINGS = "/v1/embeddings"
RERANK, SCORE = "/v1/rerank", "/v1/score"
MODELS = "/v1/models"
_SCORING_CALLS: Mapping[str, type[RerankCall | ScoreCall]] = {RERANK: RerankCall, SCORE: ScoreCall}
SCORING_ROUTES = tuple(_SCORING_CALLS)


class OpenAIService:
    """Answers OpenAI calls with the pipelines of their models; has no state between calls.

    `max_tokens` is the setting DEFAULT_MAX_TOKENS, used for calls without a limit of their own;
    None means that only the context limits an answer. `stream_multi_prompt` is the setting
    STREAM_MULTI_PROMPT. `tool_form` is the one form of tool calls to recognise; None for all forms.
    """

    def __init__(
        self,
        models: Pipeline | ModelRegistry,
        options: OptionsReader = NO_DEFAULTS,
        *,
        max_tokens: int | None = None,
        stream_multi_prompt: bool = False,
        tool_form: ToolForm | None = None,
    ) -> None:
        self._models = models if isinstance(models, ModelRegistry) else ModelRegistry(models)
        self._options = options
        self._max_tokens = max_tokens
        self._stream_several = stream_multi_prompt
        self._tool_form = tool_form
        self._created = int(time.time())

    def parse_call(
        self,
        route: str,
        body: Mapping[str, Any],
        dialect: Dialect = OPENAI,
        priority: Priority = Priority.INTERACTIVE,
    ) -> OpenAICall:
        """Parse a request body of a route. Raises InvalidRequest or NotFound."""
        spec = ENDPOINT_SPECS.get(route)
        if spec is None:
            raise NotFound(f"there is no route {describe_value(route)}", "openai_route")
        pipeline = self._models.find_for_body(body)
        return OpenAICall(
            spec,
            body,
            pipeline.model_name,
            self._max_tokens,
            self._options,
            dialect,
            stream_multi_prompt=self._stream_several,
            tool_form=self._tool_form,
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
        """Do what `parse_call` does without blocking the event loop if the body is large."""
        return await check_body(body, partial(self.parse_call, route, body, dialect, priority))

    def check_call(self, route: str, body: Mapping[str, Any]) -> None:
        """Check a call without running it.

        Raises:
            InvalidRequest: naming the parameter that is wrong.
            NotFound: there is no such route, or no such model.
        """
        if route == EMBEDDINGS:
            self._parse_embeddings_call(body, self._models.find_for_body(body), OPENAI)
        elif route in _SCORING_CALLS:
            self._parse_scoring_call(route, body, self._models.find_for_body(body), OPENAI)
        elif route != MODELS:
            self.parse_call(route, body)

    async def answer_without_generation(
        self,
        route: str,
        body: Mapping[str, Any],
        dialect: Dialect = OPENAI,
        slot: Slot | None = None,
        priority: Priority = Priority.INTERACTIVE,
    ) -> dict[str, Any]:
        """Return the response body of a route that generates no text.

        Raises:
            InvalidRequest: naming the parameter that is wrong.
            NotFound: there is no such route, or no such model.
            EngineError: the engine failed or is not available.
        """
        if route == EMBEDDINGS:
            return await self.create_embeddings(body, dialect, slot, priority)
        if route in _SCORING_CALLS:
            return await self.create_scores(route, body, dialect, slot, priority)
        if route == MODELS:
            return self.list_models()
        raise NotFound(f"there is no route {describe_value(route)}", "openai_route")

    async def create_embeddings(
        self,
        body: Mapping[str, Any],
        dialect: Dialect = OPENAI,
        slot: Slot | None = None,
        priority: Priority = Priority.INTERACTIVE,
    ) -> dict[str, Any]:
        """Return the embeddings of a body. Raises InvalidRequest, ModelNotFound or EngineError."""
        pipeline = self._models.find_for_body(body)
        call = await check_body(body, partial(self._parse_embeddings_call, body, pipeline, dialect))
        for warning in call.warnings:
            logger.warning("embeddings: %s", warning)
        engine = pipeline.engine
        call.check_dimensions(await engine.ready())
        return call.encode_response(await engine.embed(call.texts, priority, slot))

    def _parse_embeddings_call(
        self, body: Mapping[str, Any], pipeline: Pipeline, dialect: Dialect
    ) -> EmbeddingsCall:
        return EmbeddingsCall.from_body(
            body, pipeline.model_name, dialect, pipeline.adapters, pipeline.aliases
        )

    async def create_scores(
        self,
        route: str,
        body: Mapping[str, Any],
        dialect: Dialect = OPENAI,
        slot: Slot | None = None,
        priority: Priority = Priority.INTERACTIVE,
    ) -> dict[str, Any]:
        """Return the response body of a route for scores.

        Raises InvalidRequest, ModelNotFound or EngineError.
        """
        pipeline = self._models.find_for_body(body)
        call = await check_body(
            body, partial(self._parse_scoring_call, route, body, pipeline, dialect)
        )
        for warning in call.warnings:
            logger.warning("%s: %s", route.removeprefix("/v1/"), warning)
        scores = await compute_relevance(pipeline.engine, call.pairs, priority, slot)
        return call.encode_response(scores)

    def _parse_scoring_call(
        self, route: str, body: Mapping[str, Any], pipeline: Pipeline, dialect: Dialect
    ) -> RerankCall | ScoreCall:
        return _SCORING_CALLS[route].from_body(
            body, pipeline.model_name, dialect, pipeline.adapters, pipeline.aliases
        )

    def list_models(self) -> dict[str, Any]:
        """Return the list of all model and adapter names, those of the default model first."""
        return {"object": "list", "data": [self.get_model(name) for name in self._models.names]}

    def get_model(self, name: str) -> dict[str, Any]:
        """Return one model. Raises ModelNotFound."""
        return describe_model(name, self._models.find(name), self._created)

    async def complete(self, call: OpenAICall, slot: Slot | None = None) -> dict[str, Any]:
        """Run a call and return its response body, without streaming. Raises EngineError."""
        with _naming_parameters(call):
            return call.encode_response(*await self._generate(call, slot))

    async def answer(self, call: OpenAICall, slot: Slot | None = None) -> CompletedAnswer:
        """Run a call with one choice and return its answer, without streaming.

        Raises EngineError.
        """
        with _naming_parameters(call):
            (answer,) = await self._generate(call, slot)
        return answer

    async def _generate(self, call: OpenAICall, slot: Slot | None) -> list[CompletedAnswer]:
        await self._prepare(call)
        if call.parameters.sampling.max_tokens == 0:
            return await self._create_empty_answers(call)
        if len(call.requests) == 1:
            return [await self._pipeline(call).run(call.request, slot)]
        if slot is not None:
            # Each generation acquires a slot of its own.
            slot.release()
        return await run_all(self._pipeline(call), call.requests)

    async def open_stream(
        self, call: OpenAICall, slot: Slot | None = None
    ) -> ActiveGeneration | ParallelGenerations | CompletedGenerations:
        """Start a streamed call and wait for its first text. Raises EngineError."""
        with _naming_parameters(call):
            return await self._open_stream(call, slot)

    async def _open_stream(
        self, call: OpenAICall, slot: Slot | None
    ) -> ActiveGeneration | ParallelGenerations | CompletedGenerations:
        await self._prepare(call)
        if call.parameters.sampling.max_tokens == 0:
            return CompletedGenerations(await self._create_empty_answers(call))
        generations: ActiveGeneration | ParallelGenerations
        if len(call.requests) == 1:
            generations = await self._pipeline(call).open(call.request, slot)
        else:
            if slot is not None:
                slot.release()
            generations = await ParallelGenerations(self._pipeline(call), call.requests).open()
        call.starts_in_reasoning = generations.starts_in_reasoning
        return generations

    def _pipeline(self, call: OpenAICall) -> Pipeline:
        return self._models.find(call.model)

    async def _prepare(self, call: OpenAICall) -> None:
        """Complete a call with what depends on the engine. Raises EngineError."""
        engine = self._pipeline(call).engine
        if call.needs_capabilities:
            capabilities = await engine.ready()
            schema_violation, constraint = None, call.response_mode.constraint
            schema = constraint.json_schema if constraint is not None else None
            if schema is not None and capabilities.json_schema:
                # In a thread, because a large schema takes long to check.
                schema_violation = await asyncio.to_thread(find_schema_violation, schema)
            await run_check(partial(call.adapt_to, capabilities, schema_violation))
            if capabilities.infill and (suffix := call.parameters.suffix):
                texts = [await prompt_text(prompt, engine) for prompt in call.prompts]
                call.replace_prompts([await engine.infill(text, suffix) for text in texts])
        if call.parameters.echo:
            logprobs, priority = call.parameters.logprobs, call.priority
            is_scored = logprobs is not None and (await engine.ready()).prompt_logprobs
            if logprobs is not None and not is_scored:
                call.add_warnings(
                    "the prompt's tokens have no log-probabilities, because the "
                    f"{(await engine.ready()).backend} engine returns none"
                )
            if is_scored and call.parameters.sampling.lora is not None:
                is_scored = False
                call.add_warnings(
                    "the prompt's tokens have no log-probabilities, because they are computed "
                    "without adapters"
                )
            call.echoes = [
                await create_echo(
                    prompt, engine, logprobs=logprobs, is_scored=is_scored, priority=priority
                )
                for prompt in call.prompts
            ]

    async def _create_empty_answers(self, call: OpenAICall) -> list[CompletedAnswer]:
        """Return the answers of a call with `max_tokens: 0`, which only count the prompts."""
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
                reply=Reply(),
                text="",
                deltas=(),
                finish=Finish(reason=FinishReason.LENGTH, usage=Usage(tokens, 0)),
                streaming=call.streaming,
                warnings=call.request.warnings,
            )
            answers += [answer] * call.parameters.candidates
        return answers


@contextmanager
def _naming_parameters(call: OpenAICall) -> Iterator[None]:
    """Name the parameters of the call in errors of the engine.

    The engine names `prompt` where a chat has `messages`. It names `grammar` or `json_schema`
    where the client may have set another parameter, such as `regex`.
    """
    constraint = call.response_mode.constraint
    try:
        yield
    except RequestRejected as error:
        engine_param = error.details.get("param")
        if isinstance(error, PromptTooLong):
            is_chat = isinstance(call.prompts[0], Chat) and engine_param is None
            old, new = "prompt", "messages" if is_chat else None
        else:
            old, new = str(engine_param), None
            if constraint is not None and old in ("grammar", "json_schema"):
                new = constraint.param
        if new is None:
            raise
        raise error.rename_param(old, new) from error
