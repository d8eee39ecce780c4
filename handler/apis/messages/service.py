"""The Messages API without HTTP: chat completions with Anthropic's bodies, events and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from engine import Chat, Priority, Slot
from engine.errors import EngineError
from handler.apis.messages.errors import naming_prompt_length
from handler.apis.messages.events import MessageEncoder
from handler.apis.messages.message import encode_message
from handler.apis.messages.request import translate_request
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.service import OpenAIService
from handler.errors import InvalidRequest
from handler.generation.active_generation import ActiveGeneration
from handler.generation.offload import check_body
from handler.models.model_name_map import ModelNameMap
from handler.models.registry import ModelRegistry

_CHAT_ROUTE = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class MessagesCall:
    """A call of the Messages API; `model` is the name that the client sent."""

    chat: OpenAICall
    model: str

    @property
    def id(self) -> str:
        """The id of the message, which has the number that the log names the call by."""
        return f"msg_{self.chat.id.rpartition('-')[2]}"


class MessagesService:
    """Answers calls of the Messages API with the service of chat completions; has no state."""

    def __init__(self, openai: OpenAIService, models: ModelRegistry, names: ModelNameMap) -> None:
        self._openai = openai
        self._models = models
        self._names = names

    def check(self, body: Mapping[str, Any]) -> None:
        """Check a body without running it. Raises InvalidRequest or NotFound."""
        translated = translate_request(body)
        try:
            self._openai.check_call(_CHAT_ROUTE, self._with_served_model(translated.body, body))
        except InvalidRequest as error:
            raise translated.field_names.rename(error) from error

    async def parse_call(
        self, body: Mapping[str, Any], priority: Priority = Priority.INTERACTIVE
    ) -> MessagesCall:
        """Parse a body. Raises InvalidRequest or NotFound, naming the client's field."""
        translated = await check_body(body, partial(translate_request, body))
        model = body.get("model")
        try:
            chat = await self._openai.parse_call_async(
                _CHAT_ROUTE, self._with_served_model(translated.body, body), priority=priority
            )
        except InvalidRequest as error:
            raise translated.field_names.rename(error) from error
        chat.add_warnings(*translated.warnings)
        return MessagesCall(chat, model if isinstance(model, str) else chat.model)

    def _with_served_model(
        self, chat_body: Mapping[str, Any], body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the chat's body with the name of the model that answers."""
        model = body.get("model")
        served = self._names.find(model, self._models.names) if isinstance(model, str) else model
        return {**chat_body, "model": served}

    async def complete(self, call: MessagesCall, slot: Slot | None = None) -> dict[str, Any]:
        """Run a call and return its message. Raises EngineError."""
        with naming_prompt_length():
            answer = await self._openai.answer(call.chat, slot)
        return encode_message(call.id, call.model, answer)

    async def open_stream(
        self, call: MessagesCall, slot: Slot | None = None
    ) -> tuple[ActiveGeneration, MessageEncoder]:
        """Start a streamed call, wait for its first text, and count the tokens of its prompt.

        Raises EngineError.
        """
        with naming_prompt_length():
            opened = await self._openai.open_stream(call.chat, slot)
        # Only calls with several choices, or without any token to generate, have another type.
        generation = cast("ActiveGeneration", opened)
        try:
            input_tokens = await self._count_prompt(call.chat)
        except EngineError:
            # Not all engines can count. Other errors end the generation too, which reports them.
            input_tokens = 0
        except BaseException:
            generation.abort()
            raise
        return generation, MessageEncoder(call.id, call.model, input_tokens)

    async def count_tokens(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the number of the tokens of a body's prompt.

        Raises:
            InvalidRequest: naming the client's field that is wrong.
            UnsupportedParameter: the engine has no tokenizer or no chat template.
            EngineError: the engine failed or is not available.
        """
        call = await self.parse_call(body)
        with naming_prompt_length():
            return {"input_tokens": await self._count_prompt(call.chat)}

    async def _count_prompt(self, chat: OpenAICall) -> int:
        engine = self._models.find(chat.model).engine
        prompt = await engine.render(cast("Chat", chat.prompts[0]))
        return len(await engine.tokenize(prompt))
