"""Split the body of a response into its events, or into its lines of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from handler.apis.core.wire_format import WireFormat
from handler.apis.openai.dialect import OPENAI
from handler.apis.openai.wire_format import FORMATS

DONE_DATA = b"[DONE]"


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

    def has_field(self, name: bytes) -> bool:
        """Return whether the event has a field besides its data."""
        return any(line.startswith(name + b":") for line in self.other_lines)


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
