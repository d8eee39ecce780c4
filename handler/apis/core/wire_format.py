"""How an API writes its errors and its streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from structlog.contextvars import get_contextvars

from common.json_object import JsonObject
from handler.errors import ErrorInfo

EVENT_STREAM, NDJSON = "text/event-stream", "application/x-ndjson"
# Unicode line separators by their UTF-8 bytes.
_ESCAPED_LINE_ENDS = {end.encode(): f"\\u{ord(end):04x}".encode() for end in "\u0085\u2028\u2029"}


class SentBlocks(NamedTuple):
    """The first and the last block of a stream that was sent to its client; empty for none."""

    first: bytes = b""
    last: bytes = b""


NOTHING_SENT = SentBlocks()


@dataclass(frozen=True, slots=True)
class WireFormat:
    """How an API writes its errors and its streams; HTTP, the queue, jobs and batches use it.

    `encode_error` returns the body of an error. `encode_stream_error` returns the events that end a
    stream which has failed, after the blocks that were sent. `stream` is the form of a stream:
    events of which only the data counts and whose last one is `[DONE]`, events with names, or lines
    of JSON, between which there are no comments.
    """

    encode_error: Callable[[ErrorInfo], JsonObject]
    encode_stream_error: Callable[[ErrorInfo, SentBlocks], bytes]
    stream: Literal["data-events", "named-events", "lines"] = "data-events"

    @property
    def content_type(self) -> str:
        """The content type of a stream."""
        return NDJSON if self.stream == "lines" else EVENT_STREAM


def request_identity() -> JsonObject:
    """Return the member of an error that names the HTTP request which is being answered.

    Empty outside of a request, for example in a job. It is the id in the log and in the answer's
    header, which is of no use to clients that read only the events.
    """
    request_id = get_contextvars().get("request_id")
    return {} if request_id is None else {"request_id": request_id}


def escape_line_separators(events: bytes) -> bytes:
    """Return events in which U+0085, U+2028 and U+2029 are escaped as in JSON.

    `str.splitlines` splits at these characters. Clients that use it, such as httpx, would split an
    event there and could read the model's text after it as an event of its own.
    """
    if not events.isascii():
        for separator, escaped in _ESCAPED_LINE_ENDS.items():
            events = events.replace(separator, escaped)
    return events
