"""The OpenAI API without HTTP, shared by the emulator, jobs with `openai_route`, and batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial

from common.json_object import JsonObject
from common.value_description import describe_value
from engine import Engine, Finish, FinishReason, Priority, Slot, Usage
from engine.errors import UnsupportedParameter
from engine.reply.reply import Reply
from handler.apis.core.call_runner import CallDefaults, CallRunner, naming_client_fields
from handler.apis.core.parallel import CompletedGenerations, ParallelGenerations
from handler.apis.core.prepared_call import PreparedCall, prepare_call
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.apis.openai.completions import COMPLETIONS
from handler.apis.openai.dialect import OPENAI, Dialect
from handler.apis.openai.echo import Echo, create_echo
from handler.apis.openai.embeddings import EmbeddingsCall, compute_embeddings
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.apis.openai.models import describe_model
from handler.apis.openai.prompt_logprobs import score_prompts
from handler.apis.openai.relevance import compute_relevance
from handler.apis.openai.rerank import RerankCall
from handler.apis.openai.score import ScoreCall
from handler.errors import NotFound
from handler.generation.active_generation import ActiveGeneration, log_warnings
from handler.generation.completed_answer import CompletedAnswer
from handler.generation.offload import check_body
from handler.models.model_file import ModelFiles
from handler.models.registry import ModelRegistry
from handler.pipeline import Pipeline

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
_DEFAULTS = CallDefaults()


class OpenAIService:
    """Answers OpenAI calls with the models that they name; has no state between calls.

    `files` has the models' files.
    """

    def __init__(
        self,
        models: Pipeline | ModelRegistry,
        defaults: CallDefaults = _DEFAULTS,
        *,
        files: ModelFiles | None = None,
    ) -> None:
        self._files = files or ModelFiles({})
        self._models = models if isinstance(models, ModelRegistry) else ModelRegistry(models)
        self._created = int(time.time())
        self.runner = CallRunner(self._models, defaults)

    def parse_call(self, route: str, body: JsonObject, dialect: Dialect = OPENAI) -> OpenAICall:
        """Parse a request body of a route. Raises InvalidRequest or NotFound."""
        spec = ENDPOINT_SPECS.get(route)
        if spec is None:
            raise NotFound(f"there is no route {describe_value(route)}", "openai_route")
        pipeline = self._models.find_for_body(body)
        return OpenAICall(
            spec,
            body,
            pipeline.model_name,
            self.runner.defaults,
            dialect,
            adapters=pipeline.adapters,
            aliases=pipeline.aliases,
        )

    def check_call(self, route: str, body: JsonObject) -> None:
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
        body: JsonObject,
        dialect: Dialect = OPENAI,
        slot: Slot | None = None,
        priority: Priority = Priority.INTERACTIVE,
    ) -> JsonObject:
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
            return await self.list_models()
        raise NotFound(f"there is no route {describe_value(route)}", "openai_route")

    async def create_embeddings(
        self,
        body: JsonObject,
        dialect: Dialect = OPENAI,
        slot: Slot | None = None,
        priority: Priority = Priority.INTERACTIVE,
    ) -> JsonObject:
        """Return the embeddings of a body. Raises InvalidRequest, ModelNotFound or EngineError."""
        pipeline = self._models.find_for_body(body)
        call = await check_body(body, partial(self._parse_embeddings_call, body, pipeline, dialect))
        return await compute_embeddings(call, pipeline.engine, priority, slot)

    def _parse_embeddings_call(
        self, body: JsonObject, pipeline: Pipeline, dialect: Dialect
    ) -> EmbeddingsCall:
        return EmbeddingsCall.from_body(
            body, pipeline.model_name, dialect, pipeline.adapters, pipeline.aliases
        )

    async def create_scores(
        self,
        route: str,
        body: JsonObject,
        dialect: Dialect = OPENAI,
        slot: Slot | None = None,
        priority: Priority = Priority.INTERACTIVE,
    ) -> JsonObject:
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
        self, route: str, body: JsonObject, pipeline: Pipeline, dialect: Dialect
    ) -> RerankCall | ScoreCall:
        return _SCORING_CALLS[route].from_body(
            body, pipeline.model_name, dialect, pipeline.adapters, pipeline.aliases
        )

    async def list_models(self) -> JsonObject:
        """Return the list of all model and adapter names, those of the default model first."""
        models = [await self.get_model(name) for name in self._models.names]
        return {"object": "list", "data": models}

    async def get_model(self, name: str) -> JsonObject:
        """Return one model. Raises ModelNotFound."""
        pipeline = self._models.find(name)
        name = self._models.find_name(name) or name
        context_length = None
        if pipeline.engine.capabilities is None:
            # The file is read once, which may take some milliseconds.
            file = await asyncio.to_thread(self._files.describe, pipeline.model_name)
            context_length = file.context_length
        return describe_model(name, pipeline, self._created, context_length)

    async def complete(self, call: OpenAICall, slot: Slot | None = None) -> JsonObject:
        """Run a call and return its response body, without streaming. Raises EngineError."""
        with naming_client_fields(call.parsed):
            prepared = await self._prepare(call)
            if prepared.call.parameters.prompt_logprobs is not None:
                prepared = await self._score_prompts(call, prepared)
            if call.parameters.sampling.max_tokens == 0:
                answers = await self._create_empty_answers(prepared)
            else:
                answers = await self.runner.answer_all(prepared, slot)
        return call.encode_response(*answers)

    async def open_stream(
        self, call: OpenAICall, slot: Slot | None = None
    ) -> ActiveGeneration | ParallelGenerations | CompletedGenerations:
        """Start a streamed call and wait for its first text. Raises EngineError."""
        with naming_client_fields(call.parsed):
            prepared = await self._prepare(call)
            if call.parameters.sampling.max_tokens == 0:
                return CompletedGenerations(await self._create_empty_answers(prepared))
            generations = await self.runner.open_all(prepared, slot)
        call.starts_in_reasoning = generations.starts_in_reasoning
        return generations

    async def _prepare(self, call: OpenAICall) -> PreparedCall:
        """Complete a call with what depends on the engine. Raises InvalidRequest or EngineError."""
        engine, logprobs = self.runner.find_engine(call.parsed), call.parameters.logprobs
        if not call.parameters.echo:
            return await prepare_call(call.parsed, engine)
        capabilities = None if logprobs is None else await engine.ready()
        is_scored = capabilities is not None and capabilities.prompt_logprobs
        if capabilities is not None and not is_scored:
            call.add_warning(
                "the prompt's tokens have no log-probabilities, because the "
                f"{capabilities.backend} engine returns none"
            )
        elif is_scored and call.parameters.sampling.lora is not None:
            is_scored = False
            call.add_warning(
                "the prompt's tokens have no log-probabilities, because they are computed "
                "without adapters"
            )
        try:
            call.echoes = await self._create_echoes(call, engine, is_scored=is_scored)
        except UnsupportedParameter as error:
            if not is_scored:
                raise
            # The engine has found out only now, for example because memory is short.
            reason = error.message.removeprefix("echo: ")
            call.add_warning(f"the prompt's tokens have no log-probabilities: {reason}")
            call.echoes = await self._create_echoes(call, engine, is_scored=False)
        return await prepare_call(call.parsed, engine)

    async def _create_echoes(
        self, call: OpenAICall, engine: Engine, *, is_scored: bool
    ) -> list[Echo]:
        return [
            await create_echo(
                prompt,
                engine,
                logprobs=call.parameters.logprobs,
                is_scored=is_scored,
                priority=call.parsed.priority,
            )
            for prompt in call.parsed.prompts
        ]

    async def _score_prompts(self, call: OpenAICall, prepared: PreparedCall) -> PreparedCall:
        """Set the log-probabilities that a call asks for; return it with a warning on failure."""
        engine = self.runner.find_engine(prepared.call)
        try:
            call.prompt_logprobs = await score_prompts(prepared.call, engine)
        except UnsupportedParameter as error:
            reason = error.message.removeprefix("echo: ")
            return prepared.with_warning(f"prompt_logprobs was ignored: {reason}")
        return prepared

    async def _create_empty_answers(self, prepared: PreparedCall) -> list[CompletedAnswer]:
        """Return the answers of a call with `max_tokens: 0`, which only count the prompts."""
        call, engine = prepared.call, self.runner.find_engine(prepared.call)
        log_warnings(prepared.requests[0], call.warnings)
        answers = []
        for prompt in call.prompts:
            tokens = 0
            if isinstance(prompt, tuple):
                tokens = len(prompt)
            elif isinstance(prompt, str):
                tokens = len(await engine.tokenize(prompt))
            answer = CompletedAnswer(
                id=call.id,
                model=call.model,
                created=int(time.time()),
                reply=Reply(),
                text="",
                deltas=(),
                finish=Finish(reason=FinishReason.LENGTH, usage=Usage(tokens, 0)),
                streaming=call.streaming,
                warnings=call.warnings,
            )
            answers += [answer] * call.parameters.candidates
        return answers
