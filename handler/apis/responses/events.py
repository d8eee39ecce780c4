"""Encode the events of a streamed response."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from common.json_object import JsonObject
from handler.apis.core.wire_format import escape_line_separators, request_identity
from handler.apis.responses.output_items import Event
from handler.errors import ErrorInfo


class EventEncoder:
    """Numbers the events of one stream from `first` on and encodes them."""

    def __init__(self, first: int = 0) -> None:
        self._number = first

    def encode(self, kind: str, members: JsonObject) -> bytes:
        """Return one event."""
        data = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        event = b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"
        return escape_line_separators(event)

    def encode_all(self, events: Iterable[Event]) -> bytes:
        """Return several events."""
        return b"".join([self.encode(kind, members) for kind, members in events])

    def encode_failure(self, envelope: JsonObject, error: ErrorInfo) -> bytes:
        """Return the last events of a response that has failed."""
        code = error.mapping.code or error.mapping.type
        failed = {**envelope, "status": "failed", "error": {"code": code, "message": error.message}}
        return self.encode_error(error) + self.encode("response.failed", {"response": failed})

    def encode_error(self, error: ErrorInfo) -> bytes:
        """Return the event that reports an error."""
        code = error.mapping.code or error.mapping.type
        # Open Responses has these members in `error`, which would make OpenAI's clients raise
        # before they have read `response.failed`.
        event = {"code": code, "message": error.message, "param": error.param}
        return self.encode("error", {**event, **request_identity()})
