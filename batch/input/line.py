"""One line of a batch: the request and its id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from common.value_description import describe_value
from handler.apis.openai.body_keys import CALL_LINE_KEYS
from handler.input.job_keys import find_job_warnings
from handler.input.json_values import MAX_JSON_VALUES, has_more_values, parse_json

# OpenAI's limit for metadata values. The id is only copied into the answer.
MAX_ID_CHARS = 512
_BOM = b"\xef\xbb\xbf"


class BadLine(Exception):
    """A line that cannot be a request; the message is one sentence without the line's number."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a batch.

    `number` counts from 1. `route` is an OpenAI route, or None for a RunPod job, whose `body` is
    its `input`. `warnings` are sentences about the line's other keys.
    """

    number: int
    custom_id: str
    route: str | None
    body: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of request, which must be the same for all lines of a file, for messages."""
        return self.route or "job inputs"


def parse_line(raw: bytes, number: int) -> Line:
    """Return the request on a line. Raises BadLine.

    A byte order mark before the first line and carriage returns at the ends of lines are ignored,
    because editors add them.
    """
    fields = _parse_object(raw.removeprefix(_BOM) if number == 1 else raw)
    if "input" in fields and "body" not in fields:
        body = _require_object(fields, "input")
        return Line(number, _read_job_id(fields, number), None, body, find_job_warnings(fields))
    return _parse_call(fields, number)


def _parse_object(raw: bytes) -> dict[str, Any]:
    if not raw.strip():
        raise BadLine("the line is empty")
    if has_more_values(raw, MAX_JSON_VALUES):
        raise BadLine(f"the line has more than {MAX_JSON_VALUES:,} JSON values")
    try:
        fields = parse_json(raw)
    except orjson.JSONDecodeError as error:
        raise BadLine(f"the line is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadLine(f"the line must be a JSON object, got {describe_value(fields)}")
    return fields


def _parse_call(fields: Mapping[str, Any], number: int) -> Line:
    """Return the call of an OpenAI route on a line."""
    for name in ("custom_id", "method", "url", "body"):
        if name not in fields:
            raise BadLine(f"{name} is missing")
    if fields["method"] != "POST":
        raise BadLine(f"method must be POST, got {describe_value(fields['method'])}")
    url = fields["url"]
    if not isinstance(url, str):
        raise BadLine(f"url must be a string, got {describe_value(url)}")
    custom_id, body = _require_id(fields["custom_id"], "custom_id"), _require_object(fields, "body")
    return Line(number, custom_id, url, body, CALL_LINE_KEYS.warnings(fields))


def _require_object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields[name]
    if not isinstance(value, dict):
        raise BadLine(f"{name} must be a JSON object, got {describe_value(value)}")
    return value


def _read_job_id(fields: Mapping[str, Any], number: int) -> str:
    return _require_id(fields["id"], "id") if fields.get("id") is not None else f"line-{number}"


def _require_id(value: object, name: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_CHARS:
        raise BadLine(
            f"{name} must be a string of 1 to {MAX_ID_CHARS} characters, got "
            f"{describe_value(value)}"
        )
    return value
