"""A line of a batch as it travels in a queue, and where its answer goes."""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from typing import Any

import orjson

from batch.input.line import BadLine, Line, parse_line
from handler.sampling import describe_value
from jobs import Json

# Part of a key, and of commands.
_BATCH_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RESULTS_FOLDER = "results"
_UNNAMED_FOLDER = "loose"


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was received: its line, or why it has none, and the key of its answer.

    One key for the answer or the error: of two workers that have it, the first alone is kept.
    """

    key: str
    custom_id: str | None
    line: Line | None = None
    problem: str = ""


def validate_batch_name(given: object) -> str:
    """Return a batch's name. Raises ValueError."""
    if not isinstance(given, str) or _BATCH_NAME.fullmatch(given) is None:
        raise ValueError(
            "batch must be a name of 1 to 64 letters, digits, points, dashes and underscores, "
            f"got {describe_value(given)}"
        )
    return given


def encode_message(batch: str, raw: bytes, line: Line) -> Json:
    """Return a line of a batch as a message: the line, its batch and, for a job, its id."""
    found = orjson.loads(raw.removeprefix(b"\xef\xbb\xbf")) | {"batch": batch}
    if line.route is None:
        found["id"] = line.custom_id
    return orjson.dumps(found)


def parse_message(raw: Json, model: str) -> Message:
    """Return what a message asks, whoever has sent it.

    The key is made of the batch and the line's id. A line without a batch is known by its content
    and the model that answers: sent twice it is answered once.
    """
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        found = None
    told = found if isinstance(found, dict) else {}
    content = hashlib.sha256(model.encode() + b"\0" + _canonical(found, raw)).hexdigest()
    key, custom_id = f"{_UNNAMED_FOLDER}/{content}.json", told.get("custom_id", told.get("id"))
    if not isinstance(custom_id, str):
        custom_id = None
    try:
        if told.get("batch") is not None and custom_id is not None:
            key = result_key(validate_batch_name(told["batch"]), custom_id)
        # Its number is not known: a job without an id is known by its content.
        line = parse_line(raw, 0)
    except (BadLine, ValueError) as error:
        return Message(key, custom_id, problem=str(error))
    if line.route is None and custom_id is None:
        custom_id = content
        line = Line(0, custom_id, None, line.body)
    return Message(key, line.custom_id, line)


def results_prefix(batch: str) -> str:
    """Return how the keys of a batch's answers begin."""
    return f"{batch}/{_RESULTS_FOLDER}/"


def result_key(batch: str, custom_id: str) -> str:
    """Return the key of a line's answer; an id may have any characters, a key may not."""
    name = hashlib.sha256(custom_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{results_prefix(batch)}{name}.json"


def failure_line(message: Message, code: str, problem: str) -> bytes:
    """Return the line in the error file of a message that was not answered at all."""
    told: dict[str, Any]
    if message.line is not None and message.line.route is None:
        told = {"id": message.custom_id, "status": "FAILED", "error": problem}
    else:
        told = {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": message.custom_id,
            "response": None,
            "error": {"code": code, "message": problem},
        }
    return orjson.dumps(told)


def is_success_line(line: bytes) -> bool:
    """Return whether a line belongs into the output, and not into the error file.

    A text that is no answer at all does not: others may write to the bucket of the answers too.
    """
    found = _parse_object(line)
    if "status" in found:
        return bool(found["status"] == "COMPLETED")
    response = found.get("response")
    return isinstance(response, dict) and response.get("status_code") == 200


def is_answer_to(line: bytes, custom_id: str) -> bool:
    """Return whether a stored text is one line, and the answer to the line with this id."""
    found = _parse_object(line)
    return b"\n" not in line and custom_id in (found.get("custom_id"), found.get("id"))


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _canonical(found: object, raw: Json) -> bytes:
    return raw if found is None else orjson.dumps(found, option=orjson.OPT_SORT_KEYS)
