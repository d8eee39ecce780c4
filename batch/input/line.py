"""One line of a batch: what is asked, and who asked it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from handler.job_keys import job_warnings
from handler.json_values import MAX_JSON_VALUES, has_more_values, parse_json
from handler.openai.body_keys import CALL_LINE_KEYS
from handler.sampling import describe_value

# OpenAI's bound for metadata; an id is copied into every answer and looked for in none.
MAX_ID_CHARS = 512
_BOM = b"\xef\xbb\xbf"


class BadLine(Exception):
    """A line that cannot be a request; the message is one sentence without the line's number."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a batch.

    `number` counts from 1 as editors do. `route` is an OpenAI route, or None for a RunPod job,
    whose `body` is its `input`. `warnings` are sentences about the keys beside it.
    """

    number: int
    custom_id: str
    route: str | None
    body: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What all lines of a file have in common, in a user's words."""
        return self.route or "job inputs"


def parse_line(raw: bytes, number: int) -> Line:
    """Return the request on a line.

    A byte order mark before the first line and a carriage return at the end of any are what
    editors leave behind, and mean nothing. Raises BadLine.
    """
    if number == 1:
        raw = raw.removeprefix(_BOM)
    if not raw.strip():
        raise BadLine("the line is empty")
    if has_more_values(raw, MAX_JSON_VALUES):
        raise BadLine(f"the line has more than {MAX_JSON_VALUES:,} JSON values")
    try:
        found = parse_json(raw)
    except orjson.JSONDecodeError as error:
        raise BadLine(f"the line is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadLine(f"the line must be a JSON object, got {describe_value(found)}")
    if "input" in found and "body" not in found:
        body = _require_object(found, "input")
        return Line(number, _read_job_id(found, number), None, body, job_warnings(found))
    for name in ("custom_id", "method", "url", "body"):
        if name not in found:
            raise BadLine(f"{name} is missing")
    if found["method"] != "POST":
        raise BadLine(f"method must be POST, got {describe_value(found['method'])}")
    url = found["url"]
    if not isinstance(url, str):
        raise BadLine(f"url must be a string, got {describe_value(url)}")
    custom_id, body = _require_id(found["custom_id"], "custom_id"), _require_object(found, "body")
    return Line(number, custom_id, url, body, CALL_LINE_KEYS.warnings(found))


def _require_object(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = found[name]
    if not isinstance(value, dict):
        raise BadLine(f"{name} must be a JSON object, got {describe_value(value)}")
    return value


def _read_job_id(found: Mapping[str, Any], number: int) -> str:
    return _require_id(found["id"], "id") if found.get("id") is not None else f"line-{number}"


def _require_id(value: object, name: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_CHARS:
        raise BadLine(
            f"{name} must be a string of 1 to {MAX_ID_CHARS} characters, got {describe_value(value)}"
        )
    return value
