"""The exception of a handler as a person reads it, from the JSON text that the SDK makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from handler.logs.reasons import extract_error_message

# The frames of the SDK, which call the handler.
_SDK_FOLDER = "/runpod/serverless/"
# The margin of each line of an exception group.
_GROUP_MARGIN = re.compile(r"(?: +\| )?")


def read_exception(text: str) -> Mapping[str, Any] | None:
    """Return the fields of an exception that the SDK has written as JSON; None for other texts."""
    if not text.startswith("{"):
        return None
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) and "error_message" in fields else None


def format_exception(fields: Mapping[str, Any]) -> str:
    """Return the traceback of an exception, or its type and message; "" if it has neither.

    The frames of the SDK are left out: they are the same for every handler.
    """
    traceback = fields.get("error_traceback")
    if isinstance(traceback, str) and traceback.strip():
        return "\n".join(_without_sdk(traceback.strip("\n").splitlines()))
    return extract_error_message(dict(fields)) or "" if fields.get("error_message") else ""


def _without_sdk(lines: list[str]) -> Iterator[str]:
    is_of_sdk = False
    for line in lines:
        text = _GROUP_MARGIN.sub("", line, count=1)
        if text.startswith("  File "):
            is_of_sdk = _SDK_FOLDER in text.replace("\\", "/")
        elif not text.startswith("    "):
            is_of_sdk = False
        if not is_of_sdk:
            yield line
