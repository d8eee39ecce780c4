"""Split a response into its events or lines, and change them as faults require."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import orjson

from emulator.middleware.faults.parser import Faults
from handler.apis.core.wire_format import NOTHING_SENT, SentBlocks, WireFormat
from handler.apis.openai.dialect import OPENAI
from handler.apis.openai.wire_format import FORMATS
from handler.errors import ErrorInfo, ErrorMapping

_BOM = b"\xef\xbb\xbf"
_LINE_SEPARATORS = "\u0085\u2028\u2029"
# The events that say why a response or a message has ended.
_LAST_EVENTS = ("response.completed", "response.incomplete", "message_delta")
_DONE_DATA = b"[DONE]"
# Pause between two writes that the client must receive apart, in seconds.
WRITE_PAUSE_S = 0.02
# `buffer` holds back at most this many bytes.
MAX_BUFFERED_BYTES = 4_000_000
_NON_ASCII = re.compile(rb"[\x80-\xff]")


@dataclass(frozen=True, slots=True)
class Write:
    """Send bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Send nothing for `seconds`."""

    seconds: float


class StreamEnd(Enum):
    """How a fault ends a stream early."""

    CUT = "cut the connection"
    COMPLETE = "end the response"


Step = Write | Pause | StreamEnd


@dataclass(frozen=True, slots=True)
class SSEEvent:
    """One event: its data, and its other lines, which include comments.

    A line of JSON is an event that is only data.
    """

    data: bytes | None
    other_lines: tuple[bytes, ...] = ()

    @classmethod
    def parse(cls, block: bytes) -> SSEEvent:
        """Return the event of a block of lines that end with LF."""
        lines = block.split(b"\n")
        data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        others = tuple(line for line in lines if not line.startswith(b"data:"))
        return cls(b"\n".join(data) if data else None, others)


class EventSplitter:
    """Splits the body of a response into events, or into lines of JSON."""

    def __init__(self, wire_format: WireFormat = FORMATS[OPENAI]) -> None:
        self._is_lines = wire_format.stream == "lines"
        self._pending = b""

    def feed(self, body: bytes) -> Sequence[SSEEvent]:
        """Return the events that are complete now."""
        end = b"\n" if self._is_lines else b"\n\n"
        *blocks, self._pending = (self._pending + body).split(end)
        parse = SSEEvent if self._is_lines else SSEEvent.parse
        return [parse(block) for block in blocks if block]


class StreamFaults:
    """Turns the events of one stream into the writes, pauses and ends that its faults require.

    Comments of the server are passed on and not counted, and neither is `[DONE]`. `wire_format` is
    that of the stream's API.
    """

    def __init__(
        self,
        faults: Faults,
        wire_format: WireFormat = FORMATS[OPENAI],
    ) -> None:
        self._format = wire_format
        self._faults = faults
        self._sent = NOTHING_SENT
        self._count = 0
        self._last_text: SSEEvent | None = None
        self._has_separators = False
        self._is_first_write = True
        self._buffered = bytearray()

    def begin(self) -> Iterator[Step]:
        """Yield the steps before the first event."""
        if self._faults.get("drop-after") == 0:
            yield StreamEnd.CUT
        elif self._faults.get("end-after") == 0:
            yield StreamEnd.COMPLETE
        elif self._faults.get("error-event") == 0:
            yield from self._fail()

    def feed(self, event: SSEEvent) -> Iterator[Step]:
        """Yield the steps of one event."""
        if event.data is None:
            yield from self._write(self._encode(event))
        elif event.data == _DONE_DATA:
            yield from self._end()
        else:
            self._count += 1
            yield from self._feed_chunk(event, self._count)

    def finish(self) -> Iterator[Step]:
        """Yield the steps after the last event."""
        if self._buffered:
            yield Write(bytes(self._buffered))
            self._buffered.clear()

    def _feed_chunk(self, event: SSEEvent, number: int) -> Iterator[Step]:
        yield from self._precede_chunk(event, number)
        for each in self._edit(event, number):
            encoded = self._encode(each)
            if self._faults.get("cut-inside") == number:
                yield from self._write(encoded[: len(encoded) // 2])
                yield from self.finish()
                yield StreamEnd.CUT
                return
            self._sent = SentBlocks(self._sent.first or encoded, encoded)
            yield from self._write(encoded)
        yield from self._follow_chunk(number)

    def _precede_chunk(self, event: SSEEvent, number: int) -> Iterator[Step]:
        """Yield the steps of faults that come before an event."""
        faults = self._faults
        if "slow" in faults:
            yield Pause(faults["slow"])
        if number == 1 and "empty-choices" in faults:
            chunk = _parse_json(event.data or b"")
            if isinstance(chunk, dict) and "choices" in chunk:
                empty = SSEEvent(orjson.dumps({**chunk, "choices": []}))
                yield from self._write(self._encode(empty))
        if faults.get("empty-data") == number:
            yield from self._write(self._encode(SSEEvent(b"")))

    def _follow_chunk(self, number: int) -> Iterator[Step]:
        """Yield the steps of faults that come after an event."""
        faults = self._faults
        if number == 1 and "stall" in faults:
            yield Pause(faults["stall"])
        if faults.get("drop-after") == number:
            yield from self.finish()
            yield StreamEnd.CUT
        elif faults.get("end-after") == number:
            yield from self.finish()
            yield StreamEnd.COMPLETE
        elif faults.get("error-event") == number:
            yield from self._fail()

    def _edit(self, event: SSEEvent, number: int) -> Sequence[SSEEvent]:
        """Return the events that are sent for one event, each of which has data."""
        faults, data = self._faults, event.data or b""
        chunk = _parse_json(data)
        text = _find_text(chunk)
        if text is not None and "line-separators" in faults and not self._has_separators:
            self._has_separators = True
            container, key = text
            container[key] += _LINE_SEPARATORS
            event = replace(event, data=orjson.dumps(chunk))
        if text is not None:
            self._last_text = event
        if faults.get("malformed-event") == number:
            event = replace(event, data=data[: len(data) // 2])
        if faults.get("skip-event") == number:
            return []
        if _has_finish_reason(chunk):
            if "no-finish" in faults:
                return []
            if "double-finish" in faults:
                return [event, event]
        return [event, event] if faults.get("repeat-event") == number else [event]

    def _end(self) -> Iterator[Step]:
        """Yield the steps of `[DONE]`."""
        done = self._encode(SSEEvent(_DONE_DATA))
        if "no-done" not in self._faults:
            yield from self._write(done)
        if "done-twice" in self._faults:
            yield from self._write(done)
        if "text-after-done" in self._faults and self._last_text is not None:
            yield from self._write(self._encode(self._last_text))

    def _fail(self) -> Iterator[Step]:
        failure = ErrorInfo(
            "this stream failed on purpose: x-fault has error-event",
            ErrorMapping(500, "internal_error", retryable=True),
        )
        events = self._format.encode_stream_error(failure, self._sent)
        for event in EventSplitter(self._format).feed(events):
            yield from self._write(self._encode(event))
        yield from self.finish()
        yield StreamEnd.COMPLETE

    def _encode(self, event: SSEEvent) -> bytes:
        """Return the bytes of an event with the changes that concern the format."""
        faults, lines = self._faults, list(event.other_lines)
        end = b"\n\n"
        if self._format.stream == "lines":
            lines, end = [event.data or b""], b"\n"
        elif event.data is not None:
            if "comment" in faults:
                lines[:0] = [b": comment", b""]
            # The events of a job have names and ids of their own.
            if "event-names" in faults and not _has_field(lines, b"event:"):
                lines.append(b"event: chunk")
            if "id-and-retry" in faults and not _has_field(lines, b"id:"):
                lines += [b"id: fault-%d" % self._count, b"retry: 1000"]
            label = b"data:" if "no-space" in faults else b"data: "
            lines += [label + line for line in self._split_data(event.data)]
        encoded = b"\n".join(lines) + end
        if "crlf" in faults:
            return encoded.replace(b"\n", b"\r\n")
        return encoded.replace(b"\n", b"\r") if "cr" in faults else encoded

    def _split_data(self, data: bytes) -> Sequence[bytes]:
        if "multi-line-data" in self._faults and (value := _parse_json(data)) is not None:
            data = orjson.dumps(value, option=orjson.OPT_INDENT_2)
        return data.split(b"\n")

    def _write(self, data: bytes) -> Iterator[Step]:
        """Yield the writes of some bytes."""
        if self._is_first_write:
            self._is_first_write = False
            if "bom" in self._faults:
                data = _BOM + data
        if "buffer" in self._faults:
            self._buffered += data
            if len(self._buffered) > MAX_BUFFERED_BYTES:
                yield from self.finish()
        elif "split-bytes" in self._faults:
            for value in data:
                yield Write(bytes((value,)))
                yield Pause(0)
        elif "split-character" in self._faults and (
            match := _NON_ASCII.search(data, len(_BOM) if data.startswith(_BOM) else 0)
        ):
            yield Write(data[: match.end()])
            yield Pause(WRITE_PAUSE_S)
            yield Write(data[match.end() :])
        else:
            yield Write(data)


def _has_field(lines: Sequence[bytes], label: bytes) -> bool:
    return any(line.startswith(label) for line in lines)


def _parse_json(data: bytes) -> Any:
    """Return the value of JSON; None if the data is not JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _find_text(chunk: Any) -> tuple[dict[str, Any], str] | None:
    """Return the object and the key of the first text of a chunk that is not empty.

    A chunk is one of the OpenAI API, an event of the Responses or the Messages API, a line of
    Ollama's API, or a partial output of a job.
    """
    if not isinstance(chunk, dict):
        return None
    if isinstance(chunk.get("delta"), str) and chunk["delta"]:
        return chunk, "delta"
    if isinstance(chunk.get("response"), str) and chunk["response"]:
        return chunk, "response"
    message = chunk.get("message")
    if isinstance(message, dict) and isinstance(message.get("content"), str) and message["content"]:
        return message, "content"
    choices = chunk.get("choices")
    candidates = choices if isinstance(choices, list) else [chunk, chunk.get("output")]
    for candidate in candidates:
        if isinstance(candidate, dict):
            delta = candidate.get("delta")
            holder, key = (candidate, "text")
            if isinstance(delta, dict):
                holder, key = delta, "content" if "content" in delta else "text"
            if isinstance(holder.get(key), str) and holder[key]:
                return holder, key
    return None


def _has_finish_reason(chunk: Any) -> bool:
    if not isinstance(chunk, dict):
        return False
    if chunk.get("type") in _LAST_EVENTS or chunk.get("done") is True:
        return True
    choices = chunk.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") for choice in choices
    )
