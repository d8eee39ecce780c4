"""Stream an answer as the events of the Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from common.json_object import JsonObject
from engine.reply.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from handler.apis.core.reply_stream import stream_reply
from handler.apis.core.wire_format import escape_line_separators
from handler.apis.messages.message import (
    convert_call_id,
    create_signature,
    encode_envelope,
    encode_stop,
    encode_usage,
)
from handler.apis.messages.wire_format import encode_event, error_event
from handler.delivery.limits import PARTIAL_CHARS
from handler.errors import error_info
from handler.generation.active_generation import ActiveGeneration
from handler.generation.completed_answer import CompletedAnswer


class MessageEncoder:
    """Encodes one streamed message: its blocks are numbered, and one is open at a time.

    Each method returns complete events, possibly none. Not thread-safe.
    """

    def __init__(self, message_id: str, model: str, input_tokens: int) -> None:
        self._id = message_id
        self._model = model
        self._input_tokens = input_tokens
        self._index = -1
        # The type of the open block; None before the first one.
        self._open_type: str | None = None

    def encode_start(self) -> bytes:
        """Return the first event, which has the number of the prompt's tokens."""
        usage = {
            "input_tokens": self._input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        message = {
            **encode_envelope(self._id, self._model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return _event("message_start", {"message": message})

    def encode_parts(self, parts: Sequence[Part]) -> bytes:
        """Return the events of new parts of the answer."""
        return b"".join([self._encode_part(part) for part in parts])

    def encode_end(self, answer: CompletedAnswer) -> bytes:
        """Return the events after the last part. An answer without any part has an empty text."""
        events = b""
        if self._open_type is None:
            events = self._open("text", {"text": ""})
        events += self._close()
        usage = encode_usage(answer.finish.usage)
        events += _event("message_delta", {"delta": encode_stop(answer), "usage": usage})
        return events + _event("message_stop", {})

    def _encode_part(self, part: Part) -> bytes:
        match part:
            case CallStart(name, _, call_id):
                call = {"id": convert_call_id(call_id), "name": name, "input": {}}
                return self._open("tool_use", call)
            case CallArguments(text):
                return self._delta("input_json_delta", "partial_json", text)
            case ReasoningPart(text):
                opening = {"thinking": "", "signature": ""}
                return self._continue("thinking", opening, "thinking_delta", text)
            case TextPart(text):
                return self._continue("text", {"text": ""}, "text_delta", text)

    def _continue(self, kind: str, opening: JsonObject, delta: str, text: str) -> bytes:
        """Return the delta of a text; the events that open its block come first if needed."""
        if not text:
            return b""
        events = b"" if self._open_type == kind else self._open(kind, opening)
        return events + self._delta(delta, kind, text)

    def _open(self, kind: str, fields: JsonObject) -> bytes:
        events = self._close()
        self._index += 1
        self._open_type = kind
        block = {"index": self._index, "content_block": {"type": kind, **fields}}
        return events + _event("content_block_start", block)

    def _delta(self, kind: str, key: str, text: str) -> bytes:
        delta = {"index": self._index, "delta": {"type": kind, key: text}}
        return _event("content_block_delta", delta)

    def _close(self) -> bytes:
        if self._open_type is None:
            return b""
        events = b""
        if self._open_type == "thinking":
            events = self._delta("signature_delta", "signature", create_signature(self._id))
        return events + _event("content_block_stop", {"index": self._index})


async def stream_message(
    generation: ActiveGeneration,
    encoder: MessageEncoder,
    interval_s: float = 0.0,
    part_chars: int = PARTIAL_CHARS,
) -> AsyncGenerator[bytes, None]:
    """Yield a streamed answer as blocks of complete events.

    An error after the first text is sent as an event and ends the stream.
    """
    events = encoder.encode_start()
    try:
        async for new in stream_reply(generation, interval_s, part_chars):
            if isinstance(new, CompletedAnswer):
                events += encoder.encode_end(new)
            else:
                events += encoder.encode_parts(new)
            if events:
                yield escape_line_separators(events)
                events = b""
    except Exception as error:
        # Any error: a stream that just stops looks like a complete answer to some clients.
        yield escape_line_separators(events + error_event(error_info(error)))


def _event(name: str, fields: JsonObject) -> bytes:
    return encode_event(name, {"type": name, **fields})
