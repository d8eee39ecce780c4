"""Run parsed calls on the models that they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from engine import Chat, Engine, Slot
from engine.errors import RequestRejected
from engine.reply.reply_format import ToolForm
from handler.apis.core.parallel import ParallelGenerations, run_all
from handler.apis.core.parsed_call import ParsedCall
from handler.apis.core.prepared_call import PreparedCall, prepare_call
from handler.generation.active_generation import ActiveGeneration
from handler.generation.completed_answer import CompletedAnswer
from handler.input.options import NO_DEFAULTS, OptionsReader
from handler.models.registry import ModelRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDefaults:
    """The settings that the readers of all APIs share.

    `max_tokens` is the setting DEFAULT_MAX_TOKENS, used for calls without a limit of their own;
    None means that only the context limits an answer. `tool_form` is the one form of tool calls to
    recognise; None for all forms. `options` reads the checks of answers.
    """

    max_tokens: int | None = None
    tool_form: ToolForm | None = None
    options: OptionsReader = NO_DEFAULTS


class CallRunner:
    """Runs calls of all APIs; has no state between calls.

    Errors of the engine have the client's names of fields.
    """

    def __init__(self, models: ModelRegistry, defaults: CallDefaults) -> None:
        self.models = models
        self.defaults = defaults

    def find_engine(self, call: ParsedCall) -> Engine:
        """Return the engine that a call is for."""
        return self.models.find(call.model).engine

    async def count_prompt(self, call: ParsedCall) -> int:
        """Return the number of tokens of a chat. Raises EngineError."""
        [prompt] = call.prompts
        with naming_client_fields(call):
            return len(await self.find_engine(call).tokenize(cast("Chat", prompt)))

    async def answer(self, call: ParsedCall, slot: Slot | None = None) -> CompletedAnswer:
        """Run a call with one answer, without streaming. Raises EngineError."""
        pipeline = self.models.find(call.model)
        with naming_client_fields(call):
            prepared = await prepare_call(call, pipeline.engine)
            return await pipeline.run(prepared.requests[0], slot)

    async def open(self, call: ParsedCall, slot: Slot | None = None) -> ActiveGeneration:
        """Start the stream of a call with one answer; wait for its first text.

        Raises EngineError.
        """
        pipeline = self.models.find(call.model)
        with naming_client_fields(call):
            prepared = await prepare_call(call, pipeline.engine)
            return await pipeline.open(prepared.requests[0], slot)

    async def answer_all(
        self, prepared: PreparedCall, slot: Slot | None = None
    ) -> list[CompletedAnswer]:
        """Run all requests of a call, without streaming. Raises EngineError."""
        pipeline, requests = self.models.find(prepared.call.model), prepared.requests
        if len(requests) == 1:
            return [await pipeline.run(requests[0], slot)]
        if slot is not None:
            # Each generation acquires a slot of its own.
            slot.release()
        return await run_all(pipeline, requests)

    async def open_all(
        self, prepared: PreparedCall, slot: Slot | None = None
    ) -> ActiveGeneration | ParallelGenerations:
        """Start the streams of a call's requests; wait for the first text. Raises EngineError."""
        pipeline, requests = self.models.find(prepared.call.model), prepared.requests
        if len(requests) == 1:
            return await pipeline.open(requests[0], slot)
        if slot is not None:
            slot.release()
        return await ParallelGenerations(pipeline, requests).open()


@contextmanager
def naming_client_fields(call: ParsedCall) -> Iterator[None]:
    """Name the client's fields in errors of the engine: see `ParsedCall.field_names`."""
    try:
        yield
    except RequestRejected as error:
        raise call.name_field(error) from error
