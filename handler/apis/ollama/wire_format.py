"""How Ollama's API writes errors and streams."""

from __future__ import annotations

import orjson

from common.json_object import JsonObject
from handler.apis.core.wire_format import (
    SentBlocks,
    WireFormat,
    escape_line_separators,
    request_identity,
)
from handler.errors import ErrorInfo


def encode_line(line: JsonObject) -> bytes:
    """Return one line of a stream."""
    # Some clients split lines at Unicode's separators too.
    return escape_line_separators(orjson.dumps(line)) + b"\n"


def encode_error(failure: ErrorInfo) -> JsonObject:
    """Return the JSON of an error."""
    return {"error": failure.message}


def error_line(failure: ErrorInfo) -> bytes:
    """Return the line that reports an error and ends a stream."""
    return encode_line({**encode_error(failure), **request_identity()})


def _encode_stream_error(failure: ErrorInfo, sent: SentBlocks) -> bytes:
    return error_line(failure)


FORMAT = WireFormat(encode_error, _encode_stream_error, "lines")
