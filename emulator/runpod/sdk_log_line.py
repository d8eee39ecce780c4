"""Read a line of the SDK's logger."""

from __future__ import annotations

import logging

import orjson

# How a line of the SDK's logger begins when the SDK runs on RunPod.
_SDK_LINE_START = '{"requestId": '
_SDK_LEVELS = {"DEBUG": logging.DEBUG, "WARN": logging.WARNING, "ERROR": logging.ERROR}


def parse_sdk_line(text: str) -> tuple[str, int, str | None]:
    """Return message, level and job id of a line of the SDK's logger; any other line as it is."""
    if not text.startswith(_SDK_LINE_START):
        return text, logging.INFO, None
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text, logging.INFO, None
    message, job_id = fields.get("message"), fields.get("requestId")
    if not isinstance(message, str):
        return text, logging.INFO, None
    level = _SDK_LEVELS.get(str(fields.get("level")), logging.INFO)
    return message, level, job_id if isinstance(job_id, str) else None
