"""Describe a value that a client sent, for an error message."""

from __future__ import annotations

import json
from typing import Any

import orjson

from common.json_size import exceeds

_MAX_CHARS = 60


def describe_value(value: Any) -> str:
    """Return a value as short JSON for an error message; the text is always valid UTF-8."""
    if isinstance(value, list | dict) and exceeds(value, _MAX_CHARS):
        return _describe_length(value)
    # Only the beginning of a long string is needed.
    prefix = value[: _MAX_CHARS + 1] if isinstance(value, str) else value
    try:
        text = orjson.dumps(prefix).decode()
    except (TypeError, ValueError):
        text = _ascii_json(prefix)
    if isinstance(value, float) and text == "null":
        text = str(value)
    if isinstance(value, list | dict) and len(text) > _MAX_CHARS:
        return _describe_length(value)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 3]}..."


def _describe_length(value: list[Any] | dict[str, Any]) -> str:
    return f"{'an array' if isinstance(value, list) else 'an object'} of {len(value)}"


def _ascii_json(value: Any) -> str:
    """Encode a value that orjson refuses (half a surrogate pair, a huge number) as ASCII JSON."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return f"something of type {type(value).__name__} that is too large to show"
