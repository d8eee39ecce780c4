"""Write events as bytes, with the faults that concern the form of a stream and its writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import orjson

from emulator.middleware.faults.chunks import parse_json
from emulator.middleware.faults.events import SSEEvent
from emulator.middleware.faults.parser import Faults
from emulator.middleware.faults.steps import WRITE_PAUSE_S, Pause, Step, Write
from handler.apis.core.wire_format import WireFormat, escape_line_separators

BOM = b"\xef\xbb\xbf"
# `buffer` holds back at most this many bytes.
MAX_BUFFERED_BYTES = 4_000_000
_NON_ASCII = re.compile(rb"[\x80-\xff]")
_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventEncoder:
    """Encodes the events of one stream."""

    def __init__(self, faults: Faults, wire_format: WireFormat) -> None:
        self._faults = faults
        self._is_lines = wire_format.stream == "lines"

    def encode(self, event: SSEEvent, number: int) -> bytes:
        """Return the bytes of an event; `number` is that of its id."""
        faults, end = self._faults, b"\n\n"
        if self._is_lines:
            lines, end = [self._change_json(event.data or b"")], b"\n"
        elif event.data is None:
            lines = list(event.other_lines)
        else:
            lines = self._list_lines(event, number)
        if "blank-lines" in faults:
            lines[:0] = [b"", b""]
        encoded = b"\n".join(lines) + end
        if "crlf" in faults:
            return encoded.replace(b"\n", b"\r\n")
        return encoded.replace(b"\n", b"\r") if "cr" in faults else encoded

    def _list_lines(self, event: SSEEvent, number: int) -> list[bytes]:
        """Return the lines of an event that has data."""
        faults, lines = self._faults, list(event.other_lines)
        comments = int(faults.get("comments", 0)) + ("comment" in faults)
        lines[:0] = [b": comment", b""] * comments
        # The events of a job have names and ids of their own.
        if "event-names" in faults and not event.has_field(b"event"):
            lines.append(b"event: chunk")
        if "id-and-retry" in faults and not event.has_field(b"id"):
            lines += [b"id: fault-%d" % number, b"retry: 1000"]
        if "invalid-fields" in faults and not event.has_field(b"id"):
            lines += [b"id: fault\0-%d" % number, b"retry: soon"]
        if "unknown-fields" in faults:
            lines += [b"note: none of the fields of the specification", b"note"]
        label = b"data:" if "no-space" in faults else b"data: "
        return lines + [label + line for line in self._split_data(event.data or b"")]

    def _split_data(self, data: bytes) -> Sequence[bytes]:
        data = self._change_json(data)
        if "multi-line-data" in self._faults and (value := parse_json(data)) is not None:
            indented = orjson.dumps(value, option=orjson.OPT_INDENT_2)
            keeps_separators = self._faults.keys() & {"unescaped", "line-separators"}
            data = indented if keeps_separators else escape_line_separators(indented)
        return data.split(b"\n")

    def _change_json(self, data: bytes) -> bytes:
        """Return JSON with other escapes."""
        if not self._faults.keys() & {"unescaped", "escaped"}:
            return data
        if (value := parse_json(data)) is None:
            return data
        # orjson writes all characters unescaped, and the standard library escapes them.
        return orjson.dumps(value) if "unescaped" in self._faults else json.dumps(value).encode()


class WriteSplitter:
    """Turns the bytes of a stream into writes."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._is_first = True
        # Bytes that `buffer` or `no-blank-line` hold back.
        self._held = bytearray()

    def write(self, data: bytes) -> Iterator[Step]:
        """Yield the writes of some bytes, which are whole lines."""
        faults = self._faults
        if self._is_first:
            self._is_first = False
            if "bom" in faults:
                data = BOM + data
        if "buffer" in faults:
            self._held += data
            if len(self._held) > MAX_BUFFERED_BYTES:
                yield from self.finish()
        elif "no-blank-line" in faults:
            data, self._held = bytes(self._held), bytearray(data)
            yield from self._split(data)
        else:
            yield from self._split(data)

    def finish(self) -> Iterator[Step]:
        """Yield the writes of the bytes that were held back."""
        held = bytes(self._held)
        self._held.clear()
        if "no-blank-line" in self._faults:
            ends = list(_LINE_END.finditer(held))
            held = held[: ends[-1].start()] if ends and ends[-1].end() == len(held) else held
        if held:
            yield Write(held)

    def _split(self, data: bytes) -> Iterator[Step]:
        faults = self._faults
        if not data:
            return
        if "split-bytes" in faults:
            for value in data:
                yield Write(bytes((value,)))
                yield Pause(0)
        elif (parts := self._cut_parts(data)) is not None:
            for part in parts[:-1]:
                yield Write(part)
                yield Pause(WRITE_PAUSE_S)
            yield Write(parts[-1])
        else:
            yield Write(data)

    def _cut_parts(self, data: bytes) -> Sequence[bytes] | None:
        """Return the parts of bytes that must arrive apart; None if they may arrive at once."""
        ends: list[int] = []
        if "split-character" in self._faults:
            start = len(BOM) if data.startswith(BOM) else 0
            match = _NON_ASCII.search(data, start)
            ends = [] if match is None else [match.end()]
        elif "split-events" in self._faults:
            ends = [len(data) // 2]
        elif "split-lines" in self._faults:
            ends = [match.end() - 1 for match in _LINE_END.finditer(data)]
        bounds = [0, *(end for end in ends if 0 < end < len(data)), len(data)]
        if len(bounds) == 2:
            return None
        return [data[start:end] for start, end in pairwise(bounds)]
