"""The messages of a queue, each with a line of a batch, and the keys of their answers."""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from typing import Any

import orjson

from batch.input.line import BadLine, Line, parse_line
from common.value_description import describe_value
from jobs import Json

# The name becomes part of S3 keys and of shell commands.
_BATCH_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RESULTS_FOLDER = "results"
_UNNAMED_FOLDER = "loose"


@dataclass(frozen=True, slots=True)
class Message:
    """A received message: its line, or the problem with it, and the key of its answer.

    An answer and an error have the same key, so that only the first one is stored if two workers
    have the message.
    """

    key: str
    custom_id: str | None
    line: Line | None = None
    problem: str = ""


def validate_batch_name(name: object) -> str:
    """Return the name if it can be the name of a batch. Raises ValueError."""
    if not isinstance(name, str) or _BATCH_NAME.fullmatch(name) is None:
        raise ValueError(
            "batch must be a name of 1 to 64 letters, digits, points, dashes and underscores, "
            f"got {describe_value(name)}"
        )
    return name


def encode_message(batch: str, raw: bytes, line: Line) -> Json:
    """Return a line of a batch as a message: the line, its batch and, for a job, its id."""
    fields = orjson.loads(raw.removeprefix(b"\xef\xbb\xbf")) | {"batch": batch}
    if line.route is None:
        fields["id"] = line.custom_id
    return orjson.dumps(fields)


def parse_message(raw: Json, model: str) -> Message:
    """Return the line in a message, also if it was not sent by `submit`.

    The key of the answer is made of the batch and the line's id. For a message without a batch, it
    is made of its content and the model, so that a message sent twice is answered once.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    fields = value if isinstance(value, dict) else {}
    content_hash = hashlib.sha256(model.encode() + b"\0" + _canonical(value, raw)).hexdigest()
    key = f"{_UNNAMED_FOLDER}/{content_hash}.json"
    custom_id = fields.get("custom_id", fields.get("id"))
    if not isinstance(custom_id, str):
        custom_id = None
    try:
        if fields.get("batch") is not None and custom_id is not None:
            key = result_key(validate_batch_name(fields["batch"]), custom_id)
        # The line number is unknown, so a job without an id gets the hash of its content as id.
        line = parse_line(raw, 0)
    except (BadLine, ValueError) as error:
        return Message(key, custom_id, problem=str(error))
    if line.route is None and custom_id is None:
        custom_id = content_hash
        line = Line(0, custom_id, None, line.body)
    return Message(key, line.custom_id, line)


def results_prefix(batch: str) -> str:
    """Return the common prefix of the keys of a batch's answers."""
    return f"{batch}/{_RESULTS_FOLDER}/"


def result_key(batch: str, custom_id: str) -> str:
    """Return the key of a line's answer, a hash because keys allow fewer characters than ids."""
    name = hashlib.sha256(custom_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{results_prefix(batch)}{name}.json"


def failure_line(message: Message, code: str, problem: str) -> bytes:
    """Return the line for the error file of a message that no engine answered."""
    failure: dict[str, Any]
    if message.line is not None and message.line.route is None:
        failure = {"id": message.custom_id, "status": "FAILED", "error": problem}
    else:
        failure = {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": message.custom_id,
            "response": None,
            "error": {"code": code, "message": problem},
        }
    return orjson.dumps(failure)


def is_success_line(line: bytes) -> bool:
    """Return whether a line belongs in the output and not in the error file.

    Text that is not an answer does not belong there: others may write to the bucket too.
    """
    fields = _parse_object(line)
    if "status" in fields:
        return bool(fields["status"] == "COMPLETED")
    response = fields.get("response")
    return isinstance(response, dict) and response.get("status_code") == 200


def is_answer_to(line: bytes, custom_id: str) -> bool:
    """Return whether a stored text is one line, and the answer to the line with this id."""
    fields = _parse_object(line)
    return b"\n" not in line and custom_id in (fields.get("custom_id"), fields.get("id"))


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _canonical(value: object, raw: Json) -> bytes:
    return raw if value is None else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
