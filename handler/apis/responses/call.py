"""A call of the Responses API: its whole response, its events, and those in the background."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import TypeVar, cast

from common.json_object import JsonObject
from engine import Slot
from engine.reply.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from engine.runs.abortable import Abortable
from handler.apis.core.api import ApiCall, CallContext
from handler.apis.core.call_runner import CallRunner
from handler.apis.core.parsed_call import ParsedCall
from handler.apis.core.reply_stream import stream_reply
from handler.apis.core.truncation import run_truncated
from handler.apis.core.wire_format import NOTHING_SENT, SentBlocks
from handler.apis.openai.wire_format import DONE
from handler.apis.responses.events import EventEncoder
from handler.apis.responses.output_items import Event, OutputBuilder
from handler.apis.responses.request import ResponseRequest
from handler.apis.responses.response import encode_ended, encode_envelope, incomplete_reason
from handler.apis.responses.store import ResponseStore
from handler.apis.responses.wire_format import FORMAT, encode_stream_error
from handler.delivery.limits import split_events
from handler.errors import ErrorInfo, error_info
from handler.generation.active_generation import ActiveGeneration
from handler.generation.completed_answer import CompletedAnswer

T = TypeVar("T")


class ResponseCall(ApiCall):
    """A request for a response that was read.

    `created` is the time, in seconds since the epoch, at which a background response was created;
    None for other responses.
    """

    def __init__(
        self,
        request: ResponseRequest,
        created: int | None,
        runner: CallRunner,
        store: ResponseStore,
        context: CallContext,
    ) -> None:
        is_streamed = request.call.streaming or request.background
        super().__init__(FORMAT, context, streaming=is_streamed)
        self.id = request.call.id
        self.request = request
        self._created = int(time.time()) if created is None else created
        self._runner = runner
        self._store = store

    async def complete(self) -> JsonObject:
        """Run the call and return its response. Raises EngineError."""
        answer = await self._run(self._runner.answer)
        builder = self._create_builder()
        reply = answer.reply
        if reply.reasoning:
            _read_all(builder.add(ReasoningPart(reply.reasoning)))
        if answer.text or not reply.calls:
            _read_all(builder.add(TextPart(answer.text, 0)))
        for number, tool_call in enumerate(reply.calls):
            _read_all(builder.add(CallStart(tool_call.name, number, tool_call.id)))
            _read_all(builder.add(CallArguments(tool_call.arguments, number)))
        return self._end(self._envelope(), answer, builder)

    async def _open(self) -> Abortable:
        return await self._run(self._runner.open)

    async def _run(self, run: Callable[[ParsedCall, Slot | None], Awaitable[T]]) -> T:
        """Run the chat; with `truncation: auto` without the oldest turns if it is too long."""
        call, slot = self.request.call, self._context.slot
        if self.request.truncation != "auto":
            return await run(call, slot)
        return await run_truncated(call, run, slot)

    async def stream(self) -> AsyncGenerator[bytes | JsonObject, None]:
        """Yield blocks of complete events; a response in the background also as the last output."""
        generation = cast("ActiveGeneration", self._opened)
        if self.request.background:
            async for output in self._run_in_background(generation):
                yield output
            return
        async for block in self._stream_events(generation):
            for part in split_events(block):
                yield part

    def encode_stream_error(self, failure: ErrorInfo, sent: SentBlocks = NOTHING_SENT) -> bytes:
        """Return the events that end a failed stream, also if its first event was not sent."""
        return encode_stream_error(failure, sent, self._envelope())

    def _create_builder(self) -> OutputBuilder:
        request = self.request
        return OutputBuilder(request.custom_names, self.id, has_summary=request.has_summary)

    def _envelope(self) -> JsonObject:
        """Return the response as it starts."""
        return encode_envelope(self.request, self.id, self._created)

    async def _stream_events(self, generation: ActiveGeneration) -> AsyncGenerator[bytes, None]:
        """Yield the events of a response, its terminal event last.

        An error after the first text ends the stream with `response.failed`.
        """
        encoder, envelope, context = EventEncoder(), self._envelope(), self._context
        yield encoder.encode("response.created", {"response": envelope}) + encoder.encode(
            "response.in_progress", {"response": envelope}
        )
        try:
            parts = stream_reply(generation, context.interval_s, context.part_chars)
            async for block, _ in self._encode_events(envelope, encoder, parts):
                yield block
        except Exception as error:
            # Any error: a stream that ends without one looks like a complete answer.
            yield encoder.encode_failure(envelope, error_info(error))
        yield DONE

    async def _run_in_background(
        self, generation: ActiveGeneration
    ) -> AsyncGenerator[bytes | JsonObject, None]:
        """Yield the events of a background response after its first two, and the response last.

        The same tokens give the same events with the same numbers, so that a reader can go on with
        those of another attempt. The server that took the response sends the first two. Raises
        EngineError.
        """
        encoder, envelope = EventEncoder(first=2), self._envelope()
        yield encoder.encode("response.in_progress", {"response": envelope})
        parts = stream_reply(generation, self._context.interval_s, by_token=True)
        async for block, ended in self._encode_events(envelope, encoder, parts):
            yield block
            if ended is not None:
                yield ended

    async def _encode_events(
        self,
        envelope: JsonObject,
        encoder: EventEncoder,
        parts: AsyncGenerator[list[Part] | CompletedAnswer, None],
    ) -> AsyncGenerator[tuple[bytes, JsonObject | None], None]:
        """Yield blocks of events; the last one comes with the ended response."""
        builder = self._create_builder()
        async for new in parts:
            if isinstance(new, list):
                block = b"".join([encoder.encode_all(builder.add(part)) for part in new])
                if block:
                    yield block, None
                continue
            block = b""
            if not builder.items:
                block = encoder.encode_all(builder.add(TextPart("", 0)))
            reason = incomplete_reason(new)
            status = "completed" if reason is None else "incomplete"
            block += encoder.encode_all(builder.close(status))
            ended = self._end(envelope, new, builder)
            yield block + encoder.encode(f"response.{status}", {"response": ended}), ended

    def _end(
        self,
        envelope: JsonObject,
        answer: CompletedAnswer,
        builder: OutputBuilder,
    ) -> JsonObject:
        """Return the ended response; store it if the client wants that and no job has it."""
        is_complete = incomplete_reason(answer) is None
        *before, last = builder.items
        output = [
            *(item.encode() for item in before),
            last.encode("completed" if is_complete else "incomplete"),
        ]
        ended = encode_ended(envelope, answer, output, int(time.time()))
        if self.request.is_stored and not self.request.background:
            self._store.add(ended, self.request.items, self.request.previous_id)
        return ended


class InputTokensCall(ApiCall):
    """A prompt whose tokens are counted. The engine may have no tokenizer or no chat template."""

    def __init__(self, runner: CallRunner, call: ParsedCall, context: CallContext) -> None:
        super().__init__(FORMAT, context, streaming=False)
        self._runner = runner
        self._call = call

    async def complete(self) -> JsonObject:
        """Return the number of tokens. Raises EngineError."""
        tokens = await self._runner.count_prompt(self._call)
        return {"object": "response.input_tokens", "input_tokens": tokens}


def _read_all(events: Iterator[Event]) -> None:
    """Run a generator to its end; a response that is not streamed needs no events."""
    for _ in events:
        pass
