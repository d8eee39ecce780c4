"""Read request bodies: JSON objects of a bounded size."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request

from common.digits import parse_digits
from emulator.http.body_budget import BODY_EXTENSION, ReceivedBody
from handler.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from handler.input.json_values import MAX_JSON_VALUES, has_more_values, parse_json

# Larger bodies are parsed in a thread; a smaller one takes no longer than handing it to a thread.
_LARGE_BYTES = 250_000
# How much of a refused body is kept.
_START_BYTES = 64


@dataclass(frozen=True, slots=True)
class ValueLimit:
    """How many values a JSON body may have, and the setting that says so.

    A key, a list or an object counts as `container_cost` elements.
    """

    count: int = MAX_JSON_VALUES
    container_cost: int = 1
    setting: str = "MAX_JSON_VALUES"

    def __str__(self) -> str:
        cost = "" if self.container_cost == 1 else f", the last three {self.container_cost} times"
        return (
            f"{self.count:,} JSON values ({self.setting}); every list element, object key, list "
            f"and object counts{cost}"
        )


async def read_json(
    request: Request, max_bytes: int, values: ValueLimit | None = None
) -> dict[str, Any]:
    """Return the body as a JSON object; at most `max_bytes` of it are read.

    Raises:
        UnsupportedMediaType: a browser sent the body without a JSON content type.
        PayloadTooLarge: the declared or the received size exceeds `max_bytes`.
        InvalidRequest: the body is not a JSON object, or has too many values.
    """
    require_json_content_type(request)
    return await read_object(request, max_bytes, "the body", values=values)


def require_json_content_type(request: Request) -> None:
    """Check that a browser has sent its body with a JSON content type.

    Browsers send bodies with some other content types to a foreign server without a preflight
    request. Other clients may send any content type: `curl -d` sends
    application/x-www-form-urlencoded.

    Raises:
        UnsupportedMediaType: a browser sent the body without a JSON content type.
    """
    if is_from_browser(request):
        content_type = request.headers.get("content-type", "")
        label = content_type.partition(";")[0].strip().lower()
        if label != "application/json" and not label.endswith("+json"):
            raise UnsupportedMediaType(
                f"the content type must be application/json, got {label or 'none'}"
            )


async def read_object(
    request: Request,
    max_bytes: int,
    name: str,
    *,
    values: ValueLimit | None = None,
    start: bytearray | None = None,
) -> dict[str, Any]:
    """Return the body as a JSON object with any content type; `name` begins the error messages.

    Large bodies are parsed in a thread, one at a time: each step of the parsing holds the GIL for
    less than 100 ms, and the event loop runs between the steps. `values` replaces the server's
    limit for the values of a body. `start` gets the first bytes, also of a body that is refused.

    Raises:
        PayloadTooLarge: the declared or the received size exceeds `max_bytes`.
        InvalidRequest: the body is not a JSON object, or has too many values.
    """
    body = await _read(request, max_bytes, start)
    received = received_body(request)
    if received is None:
        return parse_object(body, name, values)
    budget = received.budget
    values = values or ValueLimit(budget.max_values)
    try:
        if len(body) <= _LARGE_BYTES:
            return parse_object(body, name, values)
        async with budget.parsing:
            return await asyncio.to_thread(parse_object, body, name, values)
    finally:
        received.release()


def received_body(request: Request) -> ReceivedBody | None:
    """Return the count of the request's bytes in memory; None outside our server."""
    extension = request.scope.get("extensions", {}).get(BODY_EXTENSION)
    return None if extension is None else extension["body"]


def is_from_browser(request: Request) -> bool:
    """Return whether the request has a header that browsers add and scripts cannot remove."""
    return any(
        name == b"origin" or name.startswith(b"sec-fetch-") for name, _ in request.headers.raw
    )


def parse_object(
    body: bytes | bytearray, name: str, values: ValueLimit | None = None
) -> dict[str, Any]:
    """Parse a body as a JSON object; `name` begins the error messages. Raises InvalidRequest."""
    values = values or ValueLimit()
    if has_more_values(body, values.count, values.container_cost):
        raise InvalidRequest(f"{name} has more than {values}")
    try:
        value = parse_json(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{name} is not JSON: {error}{_number_note(body)}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} must be a JSON object")
    return value


def encode_json(value: Any, name: str, param: str | None = None) -> bytes:
    """Encode a parsed JSON value again; `name` begins the error message.

    Raises:
        InvalidRequest: the value is nested too deeply.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        # Nesting is the only cause: orjson writes up to 255 levels, but parses up to 1,024.
        raise InvalidRequest(f"{name} is nested too deeply", param) from None


def _number_note(body: bytes | bytearray) -> str:
    """Return a note if the body is invalid only because of NaN or Infinity, as Python writes."""
    if not (b"NaN" in body or b"Infinity" in body):
        return ""
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return "; NaN and Infinity are no JSON"


async def _read(request: Request, max_bytes: int, start: bytearray | None) -> bytearray:
    """Read the body, at most `max_bytes` of it. Raises PayloadTooLarge."""
    declared = parse_digits(request.headers.get("content-length", ""), max_digits=19)
    is_too_large = declared is not None and declared > max_bytes
    if is_too_large and start is None:
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        if start is not None and len(start) < _START_BYTES:
            start += chunk[: _START_BYTES - len(start)]
        if is_too_large or len(body) + len(chunk) > max_bytes:
            raise _too_large(max_bytes)
        body += chunk
    return body


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than {max_bytes / 1e6:g} MB")
