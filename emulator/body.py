"""Request bodies: JSON objects of a bounded size, or a clear refusal."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from handler.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType


async def read_json(request: Request, max_bytes: int) -> dict[str, Any]:
    """Return the body as a JSON object, having read no more than `max_bytes` of it.

    Raises:
        UnsupportedMediaType: it is labelled as something else than JSON.
        PayloadTooLarge: it is larger, by its own word or by what came.
        InvalidRequest: it is no JSON object.
    """
    content_type = request.headers.get("content-type", "application/json")
    label = content_type.partition(";")[0].strip().lower()
    if label != "application/json" and not label.endswith("+json"):
        raise UnsupportedMediaType(f"the content type must be application/json, got {label}")
    too_large = PayloadTooLarge(f"the body is larger than {max_bytes / 1e6:g} MB (MAX_BODY_MB)")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise too_large
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value
