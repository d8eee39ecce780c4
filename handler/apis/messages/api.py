"""Anthropic's Messages API for HTTP routes, the queue, jobs and batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import cast

from common.json_object import JsonObject
from engine.errors import EngineError
from engine.runs.abortable import Abortable
from handler.apis.core.api import Api, ApiCall, CallContext
from handler.apis.core.call_runner import CallRunner
from handler.apis.core.parsed_call import ParsedCall
from handler.apis.messages.errors import naming_prompt_length
from handler.apis.messages.events import MessageEncoder, stream_message
from handler.apis.messages.message import encode_message
from handler.apis.messages.request import read_request
from handler.apis.messages.wire_format import FORMAT
from handler.delivery.limits import split_events
from handler.generation.active_generation import ActiveGeneration
from handler.generation.offload import check_body
from handler.models.model_name_map import ModelNameMap

MESSAGES = "/v1/messages"
COUNT_TOKENS = f"{MESSAGES}/count_tokens"


class MessagesApi(Api):
    """Answers calls of the Messages API; has no state between calls.

    `names` chooses the model for names of Anthropic's.
    """

    format = FORMAT
    routes = (MESSAGES, COUNT_TOKENS)

    def __init__(self, runner: CallRunner, names: ModelNameMap) -> None:
        self._runner = runner
        self._names = names

    def check(self, route: str, body: JsonObject) -> None:
        """Check a body without running it. Raises InvalidRequest or NotFound."""
        self._read(body)

    async def parse(self, route: str, body: JsonObject, context: CallContext) -> ApiCall:
        """Parse a body. Raises InvalidRequest or NotFound, naming the client's field."""
        call = (await check_body(body, partial(self._read, body))).in_context(context)
        if route == COUNT_TOKENS:
            return _CountCall(self._runner, call, context)
        return _MessagesCall(self._runner, call, body.get("model") or call.model, context)

    def _read(self, body: JsonObject) -> ParsedCall:
        name, models = body.get("model"), self._runner.models
        if isinstance(name, str):
            name = self._names.find(name, models.names)
        return read_request(body, models.resolve(name), self._runner.defaults)


class _CountCall(ApiCall):
    """A prompt whose tokens are counted. The engine may have no tokenizer or no chat template."""

    def __init__(self, runner: CallRunner, call: ParsedCall, context: CallContext) -> None:
        super().__init__(FORMAT, context, streaming=False)
        self._runner = runner
        self._call = call

    async def complete(self) -> JsonObject:
        with naming_prompt_length():
            return {"input_tokens": await self._runner.count_prompt(self._call)}


class _MessagesCall(ApiCall):
    """A message to generate; `model` is the name that the client sent."""

    def __init__(
        self, runner: CallRunner, call: ParsedCall, model: str, context: CallContext
    ) -> None:
        super().__init__(FORMAT, context, streaming=call.streaming)
        self._runner = runner
        self._call = call
        self._model = model
        self._input_tokens = 0

    async def complete(self) -> JsonObject:
        with naming_prompt_length():
            answer = await self._runner.answer(self._call, self._context.slot)
        return encode_message(self._call.id, self._model, answer)

    async def _open(self) -> Abortable:
        """Start the stream, wait for its first text, and count the tokens of its prompt."""
        with naming_prompt_length():
            opened = await self._runner.open(self._call, self._context.slot)
        try:
            self._input_tokens = await self._runner.count_prompt(self._call)
        except EngineError:
            # Not all engines can count. Other errors end the generation too, which reports them.
            pass
        except BaseException:
            opened.abort()
            raise
        return opened

    async def stream(self) -> AsyncGenerator[bytes, None]:
        generation, context = cast("ActiveGeneration", self._opened), self._context
        encoder = MessageEncoder(self._call.id, self._model, self._input_tokens)
        async for block in stream_message(
            generation, encoder, context.interval_s, context.part_chars
        ):
            for part in split_events(block):
                yield part
