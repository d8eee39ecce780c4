"""Prepare error messages for the log: one line of limited length, without texts of clients."""

from __future__ import annotations

import re
from typing import Any

import orjson

_MAX_CHARS = 300
_MAX_PARSED_BYTES = 64_000
# By the first character of the value in messages such as `… must be a number, got "a text"`.
# Strings, arrays and objects may contain parts of a prompt; numbers, true, false and null cannot.
_TYPE_NAMES = {'"': "a string", "[": "an array", "{": "an object"}
_QUOTED_VALUE = re.compile(r'\bgot (?:"(?:[^"\\]|\\.)*(?:"|$)|\[.*|\{.*)', re.DOTALL)


def sanitize_for_log(message: str) -> str:
    """Return an error message for the log, without values that a client sent as text."""
    message = _QUOTED_VALUE.sub(_type_name, message)
    message = " ".join(message.split())
    return message if len(message) <= _MAX_CHARS else f"{message[: _MAX_CHARS - 1]}…"


def extract_error_message(error: Any) -> str | None:
    """Return the message of an error in any of the known forms, or None.

    The forms are a plain sentence, RunPod's `{"error": …}` and `{"detail": …}`, OpenAI's
    `{"error": {"message": …}}`, also as JSON text inside a job's error, and RunPod's SDK's
    `{"error_type": …, "error_message": …}`.
    """
    if isinstance(error, str | bytes):
        if error[:1] in ("{", b"{") and len(error) <= _MAX_PARSED_BYTES:
            try:
                return extract_error_message(orjson.loads(error))
            except orjson.JSONDecodeError:
                pass
        return error if isinstance(error, str) else None
    if not isinstance(error, dict):
        return None
    if "error_message" in error:
        kind = str(error.get("error_type", ""))
        # The SDK formats the type as in Python: <class 'ValueError'>.
        name = kind.removeprefix("<class '").removesuffix("'>")
        return f"{name}: {error['error_message']}" if name else str(error["error_message"])
    details = error.get("details")
    if isinstance(details, dict) and isinstance(details.get("reason"), str):
        return str(details["reason"])
    if isinstance(error.get("detail"), str):
        return str(error["detail"])
    if "message" in error:
        return str(error["message"])
    return extract_error_message(error["error"]) if "error" in error else None


def _type_name(match: re.Match[str]) -> str:
    return f"got {_TYPE_NAMES[match[0][4]]}"
