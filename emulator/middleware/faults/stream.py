"""Turn the events of a stream into the writes, pauses and ends that its faults require."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from emulator.middleware.faults.chunks import find_text, parse_json
from emulator.middleware.faults.edits import EventEdits
from emulator.middleware.faults.encoding import EventEncoder, WriteSplitter
from emulator.middleware.faults.events import DONE_DATA, EventSplitter, SSEEvent
from emulator.middleware.faults.parser import Faults
from emulator.middleware.faults.steps import Pause, RawWrite, Step, StreamEnd
from handler.apis.core.wire_format import NOTHING_SENT, SentBlocks, WireFormat
from handler.apis.openai.dialect import OPENAI
from handler.apis.openai.wire_format import FORMATS
from handler.errors import ErrorInfo, ErrorMapping

# How a stream ends after N events, by the fault.
_ENDS: Mapping[str, StreamEnd] = {
    "drop-after": StreamEnd.CUT,
    "reset-after": StreamEnd.RESET,
    "half-close-after": StreamEnd.HALF_CLOSE,
    "end-after": StreamEnd.COMPLETE,
}
_ENDS_INSIDE: Mapping[str, StreamEnd] = {
    "cut-inside": StreamEnd.CUT,
    "end-inside": StreamEnd.COMPLETE,
}
# The bytes on the connection that are no HTTP chunk.
_WRONG_CHUNKS: Mapping[str, bytes] = {
    "bad-chunk": b"many\r\ndata: \r\n",
    "long-chunk": b"ffff\r\ndata: {",
}
_BARE_ERROR = "upstream connect error or disconnect/reset before headers"
_MESSAGE_ERROR = {"code": 500, "message": "upstream failed", "type": "upstream"}


class StreamFaults:
    """Turns the events of one stream into the steps of its faults.

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
        self._edits = EventEdits(faults)
        self._encoder = EventEncoder(faults, wire_format)
        self._writes = WriteSplitter(faults)
        self._sent = NOTHING_SENT
        self._count = 0
        self._last_text: SSEEvent | None = None

    def begin(self) -> Iterator[Step]:
        """Yield the steps before the first event."""
        yield from self._end_after(0)

    def feed(self, event: SSEEvent) -> Iterator[Step]:
        """Yield the steps of one event."""
        if event.data is None:
            yield from self._write(event)
        elif event.data == DONE_DATA:
            yield from self._send_done()
        else:
            self._count += 1
            yield from self._feed_chunk(event, self._count)

    def finish(self) -> Iterator[Step]:
        """Yield the steps after the last event."""
        for event in self._edits.finish():
            yield from self._write(event)
        yield from self._writes.finish()

    def _feed_chunk(self, event: SSEEvent, number: int) -> Iterator[Step]:
        faults = self._faults
        if "slow" in faults:
            yield Pause(faults["slow"])
        for each in self._edits.feed(event, number):
            if find_text(parse_json(each.data)) is not None:
                self._last_text = each
            encoded = self._encoder.encode(each, number)
            for name, end in _ENDS_INSIDE.items():
                if faults.get(name) == number and each.data:
                    yield from self._writes.write(encoded[: len(encoded) // 2])
                    yield from self._writes.finish()
                    yield end
                    return
            if each.data is not None:
                self._sent = SentBlocks(self._sent.first or encoded, encoded)
            yield from self._writes.write(encoded)
        if number == 1 and "stall" in faults:
            yield Pause(faults["stall"])
        yield from self._end_after(number)

    def _end_after(self, number: int) -> Iterator[Step]:
        """Yield the steps of a fault that ends the stream after event `number`."""
        faults = self._faults
        for name, end in _ENDS.items():
            if faults.get(name) == number:
                yield from self.finish()
                yield end
                return
        for name, data in _WRONG_CHUNKS.items():
            if faults.get(name) == number:
                yield from self.finish()
                yield RawWrite(data)
                yield StreamEnd.CUT
                return
        if faults.get("error-event") == number:
            yield from self._fail(self._encode_failure())
        elif faults.get("bare-error") == number:
            yield from self._fail(self._as_error(_BARE_ERROR.encode()))
        elif faults.get("message-error") == number:
            yield from self._fail(self._as_error(orjson.dumps(_MESSAGE_ERROR)))

    def _send_done(self) -> Iterator[Step]:
        """Yield the steps of `[DONE]`."""
        for event in self._edits.finish():
            yield from self._write(event)
        done = SSEEvent(DONE_DATA)
        if "no-done" not in self._faults:
            yield from self._write(done)
        if "done-twice" in self._faults:
            yield from self._write(done)
        if "text-after-done" in self._faults and self._last_text is not None:
            yield from self._write(self._last_text)

    def _encode_failure(self) -> bytes:
        failure = ErrorInfo(
            "this stream failed on purpose: x-fault has error-event",
            ErrorMapping(500, "internal_error", retryable=True),
        )
        return self._format.encode_stream_error(failure, self._sent)

    def _as_error(self, data: bytes) -> bytes:
        """Return an error with these data as the last event, or the last line."""
        if self._format.stream == "lines":
            return data + b"\n"
        return b"event: error\ndata: " + data + b"\n\n"

    def _fail(self, events: bytes) -> Iterator[Step]:
        for event in EventSplitter(self._format).feed(events):
            if event.data != DONE_DATA or "no-done" not in self._faults:
                yield from self._write(event)
        yield from self.finish()
        yield StreamEnd.COMPLETE

    def _write(self, event: SSEEvent) -> Iterator[Step]:
        yield from self._writes.write(self._encoder.encode(event, self._count))
