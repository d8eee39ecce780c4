"""How OpenAI's API, and the dialects of it, write errors and streams."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import orjson

from handler.apis.core.wire_format import SentBlocks, WireFormat, request_identity
from handler.apis.openai.dialect import OPENAI, ORACLE, OVMS, Dialect
from handler.errors import ErrorInfo

DONE = b"data: [DONE]\n\n"


def error_event(error: ErrorInfo, dialect: Dialect = OPENAI) -> bytes:
    """Return the event that reports an error."""
    body = error.named_error() if dialect.named_errors else error.openai_error()
    body["error"] |= request_identity()
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _encode_stream_error(dialect: Dialect, failure: ErrorInfo, sent: SentBlocks) -> bytes:
    return error_event(failure, dialect) + DONE


FORMATS: Mapping[Dialect, WireFormat] = {
    dialect: WireFormat(
        encode_error=ErrorInfo.named_error if dialect.named_errors else ErrorInfo.openai_error,
        encode_stream_error=partial(_encode_stream_error, dialect),
    )
    for dialect in (OPENAI, ORACLE, OVMS)
}
