"""Answer calls that name their route: jobs with `openai_route`, and the lines of batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from common.value_description import describe_value
from engine import Priority, Slot, Usage
from handler.apis.messages.errors import encode_error
from handler.apis.messages.events import stream_message
from handler.apis.messages.service import MessagesService
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import (
    EMBEDDINGS,
    ENDPOINT_SPECS,
    MODELS,
    SCORING_ROUTES,
    OpenAIService,
)
from handler.apis.responses.response import ID_PREFIX
from handler.apis.responses.service import ResponsesService
from handler.apis.responses.store import ResponseStore
from handler.delivery.limits import PARTIAL_CHARS, split_events
from handler.errors import ErrorInfo, InvalidRequest, NotFound
from handler.models.model_name_map import CLAUDE_TO_DEFAULT, ModelNameMap
from handler.models.registry import ModelRegistry

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
# The routes that generate an answer, embeddings or scores from one body.
CALL_ROUTES = (*ENDPOINT_SPECS, EMBEDDINGS, *SCORING_ROUTES, RESPONSES, MESSAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What a call has besides its route and its body.

    `slot` is a reserved slot, which its owner releases. `timeout_s` limits each generation; None
    for the engine's own limit. `job_id` names the job that the call is; None if it is none.
    `warnings` become part of the answer. `interval_s` is the minimum time between two blocks of a
    stream, and `part_chars` the maximum text of an event.
    """

    slot: Slot | None = None
    priority: Priority = Priority.INTERACTIVE
    timeout_s: float | None = None
    job_id: str | None = None
    warnings: tuple[str, ...] = ()
    interval_s: float = 0.0
    part_chars: int = PARTIAL_CHARS


class ApiCalls:
    """Chooses the service that answers a route; has no state between calls."""

    def __init__(
        self, openai: OpenAIService, responses: ResponsesService, messages: MessagesService
    ) -> None:
        self.openai = openai
        self.responses = responses
        self.messages = messages

    def check(self, route: str, body: Mapping[str, Any]) -> None:
        """Check a call without running it. Raises InvalidRequest or NotFound."""
        _check_route(route)
        if route == RESPONSES:
            self.responses.check(body)
        elif route == MESSAGES:
            self.messages.check(body)
        else:
            self.openai.check_call(route, body)

    async def answer(
        self, route: str, body: Mapping[str, Any], context: CallContext
    ) -> dict[str, Any]:
        """Return the body of the answer to a call that is not streamed.

        Raises:
            HandlerError: the call is wrong, or has no such route or model.
            EngineError: the engine failed or is not available.
        """
        async with aclosing(self.run(route, body, context)) as outputs:
            async for output in outputs:
                if isinstance(output, dict):
                    return output
        raise AssertionError("a call that is not streamed has one body")

    async def run(
        self, route: str, body: Mapping[str, Any], context: CallContext
    ) -> AsyncGenerator[bytes | dict[str, Any], None]:
        """Yield blocks of complete events of a streamed call, or the one body of another call.

        Raises:
            HandlerError: the call is wrong, or has no such route or model.
            EngineError: the engine failed before the first event, or is not available.
        """
        _check_route(route)
        if route == RESPONSES:
            outputs = self._run_response(body, context)
        elif route == MESSAGES:
            outputs = self._run_message(body, context)
        else:
            outputs = self._run_openai(route, body, context)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    async def _run_openai(
        self, route: str, body: Mapping[str, Any], context: CallContext
    ) -> AsyncGenerator[bytes | dict[str, Any], None]:
        answer = await self.openai.answer_without_generation(route, body, context.slot)
        if answer is not None:
            if context.warnings:
                answer |= {"warnings": [*answer.get("warnings", ()), *context.warnings]}
            yield answer
            return
        call = await self.openai.parse_call_async(route, body, priority=context.priority)
        _apply_context(call, context)
        if not call.streaming:
            yield await self.openai.complete(call, context.slot)
            return
        async with await self.openai.open_stream(call, context.slot) as generation:
            async for block in stream_events(
                call, generation, context.interval_s, context.part_chars
            ):
                yield block

    async def _run_response(
        self, body: Mapping[str, Any], context: CallContext
    ) -> AsyncGenerator[bytes | dict[str, Any], None]:
        response_id = None if context.job_id is None else ID_PREFIX + context.job_id
        call = await self.responses.parse(body, context.priority, response_id)
        _apply_context(call.chat, context)
        if call.request.background:
            if context.job_id is None:
                raise InvalidRequest(
                    "background: true is for POST /v1/responses, and not for lines of a batch",
                    "background",
                )
            async with await self.responses.open_stream(call, context.slot) as generation:
                async for output in self.responses.run_in_background(
                    call, generation, context.interval_s
                ):
                    yield output
            return
        if not call.streaming:
            yield await self.responses.complete(call, context.slot)
            return
        async with await self.responses.open_stream(call, context.slot) as generation:
            async for block in self.responses.stream_events(
                call, generation, context.interval_s, context.part_chars
            ):
                for part in split_events(block):
                    yield part

    async def _run_message(
        self, body: Mapping[str, Any], context: CallContext
    ) -> AsyncGenerator[bytes | dict[str, Any], None]:
        call = await self.messages.parse_call(body, context.priority)
        _apply_context(call.chat, context)
        if not call.chat.streaming:
            yield await self.messages.complete(call, context.slot)
            return
        generation, encoder = await self.messages.open_stream(call, context.slot)
        async with generation:
            async for block in stream_message(
                call.chat, generation, encoder, context.interval_s, context.part_chars
            ):
                for part in split_events(block):
                    yield part


def build_calls(
    openai: OpenAIService, models: ModelRegistry, names: ModelNameMap = CLAUDE_TO_DEFAULT
) -> ApiCalls:
    """Return the services of all routes; `names` chooses the model for names of Anthropic's."""
    return ApiCalls(
        openai,
        ResponsesService(openai, ResponseStore()),
        MessagesService(openai, models, names),
    )


def encode_call_error(route: str, failure: ErrorInfo) -> dict[str, Any]:
    """Return the error of a call in the form of its API."""
    return encode_error(failure) if route == MESSAGES else failure.openai_error()


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return the token counts in the body of an answer, in the form of any of the APIs."""
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


def _check_route(route: str) -> None:
    if route not in CALL_ROUTES and route != MODELS:
        known = ", ".join([*CALL_ROUTES, MODELS])
        raise NotFound(
            f"there is no route {describe_value(route)}, there are: {known}", "openai_route"
        )


def _apply_context(chat: OpenAICall, context: CallContext) -> None:
    # Before the warnings, which build the call's requests.
    chat.timeout_s = context.timeout_s
    chat.add_warnings(*context.warnings)
