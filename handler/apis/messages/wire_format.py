"""How the Messages API writes errors and streams."""

from __future__ import annotations

import orjson

from common.json_object import JsonObject
from handler.apis.core.wire_format import SentBlocks, WireFormat, request_identity
from handler.apis.messages.errors import encode_error
from handler.errors import ErrorInfo


def encode_event(name: str, data: JsonObject) -> bytes:
    """Return one event."""
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


def error_event(failure: ErrorInfo) -> bytes:
    """Return the event that reports an error."""
    return encode_event("error", {**encode_error(failure), **request_identity()})


def _encode_stream_error(failure: ErrorInfo, sent: SentBlocks) -> bytes:
    return error_event(failure)


FORMAT = WireFormat(encode_error, _encode_stream_error, "named-events")
