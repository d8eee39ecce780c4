"""Answer responses with the service of chats."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from engine import Priority, Slot
from engine.errors import RequestRejected
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.events import DONE
from handler.apis.openai.reply_stream import stream_reply
from handler.apis.openai.service import OpenAIService
from handler.apis.responses.events import EventEncoder
from handler.apis.responses.input_items import read_items
from handler.apis.responses.output_items import Event, OutputBuilder
from handler.apis.responses.request import (
    ResponseRequest,
    name_as_response,
    read_created_at,
    read_previous_id,
    read_request,
)
from handler.apis.responses.response import (
    encode_ended,
    encode_envelope,
    incomplete_reason,
    new_response_id,
)
from handler.apis.responses.store import ResponseSource, ResponseStore
from handler.apis.truncation import CHAT_ROUTE, run_truncated
from handler.delivery.limits import PARTIAL_CHARS
from handler.errors import HandlerError, InvalidRequest, error_info
from handler.generation.active_generation import ActiveGeneration
from handler.generation.completed_answer import CompletedAnswer
from handler.reply.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """A request for a response that was read, and the chat completion that will answer it.

    `created` is the time, in seconds since the epoch, at which a background response was created;
    None for other responses.
    """

    id: str
    request: ResponseRequest
    chat: OpenAICall
    created: int | None = None

    @property
    def streaming(self) -> bool:
        """Whether the response is streamed."""
        return self.request.streaming


class ResponsesService:
    """Answers the Responses API; keeps nothing between requests but the stored responses.

    Owned by the event loop.
    """

    def __init__(self, openai: OpenAIService, store: ResponseStore) -> None:
        self._openai = openai
        self._store = store

    async def parse(
        self,
        body: Mapping[str, Any],
        priority: Priority = Priority.INTERACTIVE,
        response_id: str | None = None,
    ) -> ResponseCall:
        """Read a body; without `response_id` the response gets a new id.

        Raises:
            InvalidRequest: naming the parameter that is wrong.
            ModelNotFound: no model has that name.
        """
        earlier_items = await self.read_conversation(body)
        request = read_request(body, earlier_items)
        with _naming_parameters():
            chat = await self._openai.parse_call_async(
                CHAT_ROUTE, request.chat_body, priority=priority
            )
        if chat.parameters.candidates != 1:
            raise InvalidRequest("n and best_of must be 1: a response has one output", "n")
        return ResponseCall(response_id or new_response_id(), request, chat, read_created_at(body))

    async def read_conversation(self, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the items of the responses that a body continues. Raises InvalidRequest."""
        previous_id = read_previous_id(body)
        if (items := body.get("previous_items")) is not None:
            return read_items(items, "previous_items")
        return await self._store.conversation(previous_id)

    def check(self, body: Mapping[str, Any]) -> None:
        """Check a body, without what it continues. Raises InvalidRequest or ModelNotFound."""
        read_previous_id(body)
        request = read_request(body, ())
        with _naming_parameters():
            self._openai.check_call(CHAT_ROUTE, request.chat_body)

    async def complete(self, call: ResponseCall, slot: Slot | None = None) -> dict[str, Any]:
        """Run a call and return its response, without streaming. Raises EngineError."""
        created = int(time.time())
        with _naming_parameters():
            answer = await self._run_truncated(call, self._openai.answer, slot)
        builder = OutputBuilder(call.request.custom_names, call.id)
        reply = answer.reply
        if reply.reasoning:
            _read_all(builder.add(ReasoningPart(reply.reasoning)))
        if answer.text or not reply.calls:
            _read_all(builder.add(TextPart(answer.text, 0)))
        for number, tool_call in enumerate(reply.calls):
            _read_all(builder.add(CallStart(tool_call.name, number, tool_call.id)))
            _read_all(builder.add(CallArguments(tool_call.arguments, number)))
        envelope = encode_envelope(call.request, call.chat, call.id, created)
        return self._end(call, envelope, answer, builder)

    async def open_stream(self, call: ResponseCall, slot: Slot | None = None) -> ActiveGeneration:
        """Start a streamed call and wait for its first text. Raises EngineError."""
        with _naming_parameters():
            generation = await self._run_truncated(call, self._openai.open_stream, slot)
        # A chat with one choice has no other kind: chats refuse a limit of 0 tokens.
        assert isinstance(generation, ActiveGeneration)  # noqa: S101
        return generation

    async def _run_truncated(
        self,
        call: ResponseCall,
        run: Callable[[OpenAICall, Slot | None], Awaitable[T]],
        slot: Slot | None,
    ) -> T:
        """Run the chat; with `truncation: auto` without the oldest turns if it is too long."""
        if call.request.truncation != "auto":
            return await run(call.chat, slot)
        return await run_truncated(self._openai, call.chat, call.request.chat_body, run, slot)

    async def stream_events(
        self,
        call: ResponseCall,
        generation: ActiveGeneration,
        interval_s: float = 0.0,
        part_chars: int = PARTIAL_CHARS,
    ) -> AsyncGenerator[bytes, None]:
        """Yield a streamed response as blocks of complete events, its terminal event last.

        An error after the first text ends the stream with `response.failed`.
        """
        encoder = EventEncoder()
        envelope = encode_envelope(call.request, call.chat, call.id, generation.created)
        yield encoder.encode("response.created", {"response": envelope}) + encoder.encode(
            "response.in_progress", {"response": envelope}
        )
        try:
            parts = stream_reply(call.chat, generation, interval_s, part_chars)
            async for block, _ in self._encode_events(call, envelope, encoder, parts):
                yield block
        except Exception as error:
            # Any error: a stream that ends without one looks like a complete answer.
            yield encoder.encode_failure(envelope, error_info(error))
        yield DONE

    async def run_in_background(
        self, call: ResponseCall, generation: ActiveGeneration, interval_s: float = 0.0
    ) -> AsyncGenerator[bytes | dict[str, Any], None]:
        """Yield the events of a background response after its first two, and the response last.

        The same tokens give the same events with the same numbers, so that a reader can go on with
        those of another attempt. The server that took the response sends the first two. Raises
        EngineError.
        """
        created = generation.created if call.created is None else call.created
        envelope = encode_envelope(call.request, call.chat, call.id, created)
        encoder = EventEncoder(first=2)
        yield encoder.encode("response.in_progress", {"response": envelope})
        parts = stream_reply(call.chat, generation, interval_s, by_token=True)
        async for block, ended in self._encode_events(call, envelope, encoder, parts):
            yield block
            if ended is not None:
                yield ended

    async def _encode_events(
        self,
        call: ResponseCall,
        envelope: Mapping[str, Any],
        encoder: EventEncoder,
        parts: AsyncGenerator[list[Part] | CompletedAnswer, None],
    ) -> AsyncGenerator[tuple[bytes, dict[str, Any] | None], None]:
        """Yield blocks of events; the last one comes with the ended response."""
        builder = OutputBuilder(call.request.custom_names, call.id)
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
            ended = self._end(call, envelope, new, builder)
            yield block + encoder.encode(f"response.{status}", {"response": ended}), ended

    def _end(
        self,
        call: ResponseCall,
        envelope: Mapping[str, Any],
        answer: CompletedAnswer,
        builder: OutputBuilder,
    ) -> dict[str, Any]:
        """Return the ended response; store it if the client wants that and no job has it."""
        is_complete = incomplete_reason(answer) is None
        *before, last = builder.items
        output = [
            *(item.encode() for item in before),
            last.encode("completed" if is_complete else "incomplete"),
        ]
        ended = encode_ended(envelope, answer, output, int(time.time()), call.request.warnings)
        if call.request.is_stored and not call.request.background:
            self._store.add(ended, call.request.items, call.request.previous_id)
        return ended

    def add_source(self, source: ResponseSource) -> None:
        """Add a place that has responses besides those in memory."""
        self._store.others.append(source)

    async def get(self, response_id: str) -> bytes:
        """Return a stored response as JSON. Raises NotFound."""
        return (await self._store.get(response_id)).response

    async def delete(self, response_id: str) -> dict[str, Any]:
        """Delete a stored response. Raises NotFound."""
        await self._store.remove(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    async def list_input_items(
        self, response_id: str, *, limit: int = 20, order: str = "desc", after: str | None = None
    ) -> dict[str, Any]:
        """Return a page of the input items of a response. Raises NotFound."""
        stored = await self._store.get(response_id)
        items = [
            {"id": f"item_{response_id.removeprefix('resp_')}_{number}", **item}
            for number, item in enumerate(orjson.loads(stored.items))
        ]
        if order == "desc":
            items.reverse()
        if after is not None:
            ids = [item["id"] for item in items]
            items = items[ids.index(after) + 1 :] if after in ids else []
        page = items[:limit]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > len(page),
        }


@contextmanager
def _naming_parameters() -> Iterator[None]:
    """Name the parameters of the response in errors about the chat."""
    try:
        yield
    except HandlerError as error:
        raise name_as_response(error) from error
    except RequestRejected as error:
        renamed = name_as_response(InvalidRequest(error.message, str(error.details.get("param"))))
        details = error.details | {"param": renamed.param}
        raise type(error)(renamed.message, **details) from error


def _read_all(events: Iterator[Event]) -> None:
    """Run a generator to its end; a response that is not streamed needs no events."""
    for _ in events:
        pass
