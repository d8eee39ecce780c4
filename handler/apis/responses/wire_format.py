"""How the Responses API writes errors and streams."""

from __future__ import annotations

from typing import Any

import orjson

from common.json_object import JsonObject
from handler.apis.core.wire_format import SentBlocks, WireFormat
from handler.apis.openai.wire_format import DONE
from handler.apis.responses.events import EventEncoder
from handler.errors import ErrorInfo


def encode_stream_error(
    failure: ErrorInfo, sent: SentBlocks, envelope: JsonObject | None = None
) -> bytes:
    """Return the events that end a failed stream; clients wait for `response.failed`.

    `envelope` is the response as it started, for a stream of which nothing was sent. Without it,
    and if what was sent has no response either, the `error` event is the only one.
    """
    if not sent.first and envelope is not None:
        encoder = EventEncoder()
        opening = encoder.encode("response.created", {"response": envelope})
        return opening + encoder.encode_failure(envelope, failure) + DONE
    started, number = _read_data(sent.first).get("response"), last_number(sent.last)
    encoder = EventEncoder(number + 1)
    if not isinstance(started, dict):
        return encoder.encode_error(failure) + DONE
    return encoder.encode_failure(started, failure) + DONE


def last_number(block: bytes) -> int:
    """Return the `sequence_number` of the last event in a block of events; -1 if none has one."""
    for event in reversed(block.removesuffix(b"\n\n").split(b"\n\n")):
        number = _read_data(event).get("sequence_number")
        if type(number) is int:
            return number
    return -1


def _read_data(events: bytes) -> dict[str, Any]:
    """Return the JSON object in the first of some events; an empty one if it has none."""
    for line in events.partition(b"\n\n")[0].split(b"\n"):
        if line.startswith(b"data:"):
            try:
                data = orjson.loads(line.removeprefix(b"data:"))
            except orjson.JSONDecodeError:
                continue
            if isinstance(data, dict):
                return data
    return {}


FORMAT = WireFormat(ErrorInfo.openai_error, encode_stream_error, "named-events")
