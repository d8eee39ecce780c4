"""Anthropic's Messages API for HTTP routes, the queue, jobs and batches: chats in its form."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

from engine import Chat
from engine.abortable import Abortable
from engine.errors import EngineError
from handler.apis.core.api import Api, ApiCall, CallContext
from handler.apis.core.field_names import FieldNames
from handler.apis.messages.errors import naming_prompt_length
from handler.apis.messages.events import MessageEncoder, stream_message
from handler.apis.messages.message import encode_message
from handler.apis.messages.request import translate_request
from handler.apis.messages.wire_format import FORMAT
from handler.apis.openai.api import apply_context
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.service import OpenAIService
from handler.delivery.limits import split_events
from handler.generation.active_generation import ActiveGeneration
from handler.generation.offload import check_body
from handler.models.model_name_map import ModelNameMap
from handler.models.registry import ModelRegistry

MESSAGES = "/v1/messages"
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
_CHAT_ROUTE = "/v1/chat/completions"


class MessagesApi(Api):
    """Answers calls of the Messages API with the service of chats; has no state between calls.

    `names` chooses the model for names of Anthropic's.
    """

    format = FORMAT
    routes = (MESSAGES, COUNT_TOKENS)

    def __init__(self, openai: OpenAIService, models: ModelRegistry, names: ModelNameMap) -> None:
        self._openai = openai
        self._models = models
        self._names = names

    def check(self, route: str, body: Mapping[str, Any]) -> None:
        """Check a body without running it. Raises InvalidRequest or NotFound."""
        translated = translate_request(body)
        with translated.field_names.in_errors():
            self._openai.check_call(_CHAT_ROUTE, self._with_served_model(translated.body, body))

    async def parse(self, route: str, body: Mapping[str, Any], context: CallContext) -> ApiCall:
        """Parse a body. Raises InvalidRequest or NotFound, naming the client's field."""
        chat, names = await self._parse_chat(body, context)
        model = body.get("model")
        name = model if isinstance(model, str) else chat.model
        if route == COUNT_TOKENS:
            return _CountCall(chat, names, self._count_prompt, context)
        return _MessagesCall(self._openai, chat, names, name, self._count_prompt, context)

    async def _parse_chat(
        self, body: Mapping[str, Any], context: CallContext
    ) -> tuple[OpenAICall, FieldNames]:
        translated = await check_body(body, partial(translate_request, body))
        with translated.field_names.in_errors():
            chat = await self._openai.parse_call_async(
                _CHAT_ROUTE,
                self._with_served_model(translated.body, body),
                priority=context.priority,
            )
        apply_context(chat, context)
        chat.add_warnings(*translated.warnings)
        return chat, translated.field_names

    def _with_served_model(
        self, chat_body: Mapping[str, Any], body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the chat's body with the name of the model that answers."""
        model = body.get("model")
        served = self._names.find(model, self._models.names) if isinstance(model, str) else model
        return {**chat_body, "model": served}

    async def _count_prompt(self, chat: OpenAICall) -> int:
        engine = self._models.find(chat.model).engine
        prompt = await engine.render(cast("Chat", chat.prompts[0]))
        return len(await engine.tokenize(prompt))


class _CountCall(ApiCall):
    """A prompt whose tokens are counted. The engine may have no tokenizer or no chat template."""

    def __init__(
        self,
        chat: OpenAICall,
        names: FieldNames,
        count_prompt: Callable[[OpenAICall], Awaitable[int]],
        context: CallContext,
    ) -> None:
        super().__init__(FORMAT, context, streaming=False)
        self._chat = chat
        self._names = names
        self._count_prompt = count_prompt

    async def complete(self) -> dict[str, Any]:
        with naming_prompt_length(), self._names.in_errors():
            return {"input_tokens": await self._count_prompt(self._chat)}


class _MessagesCall(ApiCall):
    """A message to generate; `model` is the name that the client sent."""

    def __init__(
        self,
        openai: OpenAIService,
        chat: OpenAICall,
        names: FieldNames,
        model: str,
        count_prompt: Callable[[OpenAICall], Awaitable[int]],
        context: CallContext,
    ) -> None:
        super().__init__(FORMAT, context, streaming=chat.streaming)
        self._openai = openai
        self._chat = chat
        self._names = names
        self._model = model
        self._count_prompt = count_prompt
        # The number that the log names the call by.
        self._id = f"msg_{chat.id.rpartition('-')[2]}"
        self._input_tokens = 0

    async def complete(self) -> dict[str, Any]:
        with naming_prompt_length(), self._names.in_errors():
            answer = await self._openai.answer(self._chat, self._context.slot)
        return encode_message(self._id, self._model, answer)

    async def _open(self) -> Abortable:
        """Start the stream, wait for its first text, and count the tokens of its prompt."""
        with naming_prompt_length(), self._names.in_errors():
            opened = await self._openai.open_stream(self._chat, self._context.slot)
        try:
            self._input_tokens = await self._count_prompt(self._chat)
        except EngineError:
            # Not all engines can count. Other errors end the generation too, which reports them.
            pass
        except BaseException:
            opened.abort()
            raise
        return opened

    async def stream(self) -> AsyncGenerator[bytes, None]:
        # Only calls with several choices, or without any token to generate, have another type.
        generation = cast("ActiveGeneration", self._opened)
        encoder = MessageEncoder(self._id, self._model, self._input_tokens)
        context = self._context
        async for block in stream_message(
            self._chat, generation, encoder, context.interval_s, context.part_chars
        ):
            for part in split_events(block):
                yield part
