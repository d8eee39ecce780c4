"""Convert a worker's output of a call into events, a response body, or an error."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import orjson

from common.json_object import JsonObject
from common.value_description import describe_value
from handler.apis.core.wire_format import escape_line_separators, request_identity
from handler.apis.messages.errors import STATUSES
from handler.apis.openai.wire_format import DONE
from handler.delivery.results import find_result_pointer
from handler.errors import OPENAI_CODES, CallFailed, ErrorInfo, ErrorMapping
from jobs import Job, JobStatus

_DEFAULT_STATUS = 500
_INVALID_OUTPUT = ErrorMapping(502, "worker_error")
_IN_BUCKET = ErrorMapping(413, "result_too_large_error")
_TIMEOUT = ErrorMapping(504, "timeout_error", retryable=True)
_CANCELLED = ErrorMapping(499, "cancelled_error")
# Longer than the error message of any worker.
_MAX_REPR_CHARS = 100_000
# How the data of an error begins in streams of OpenAI's API, and in those of older vLLM versions.
_ERROR_START = re.compile(rb'\{\s*"(?:error"\s*:\s*\{|object"\s*:\s*"error")')


class SSEReassembler:
    """Builds complete server-sent events from a worker's stream.

    Workers stream text that is split anywhere, even within an event or a line end; chunks as
    objects; or lists of either. Each event is returned with one `data` line, which all OpenAI
    clients can read, and with its Unicode line separators escaped. Anything after `[DONE]` is
    discarded. With `has_names` events keep their names, or get the type in their data as one, and
    no `[DONE]` is added. An event of an error gets the id of the request, which a worker does not
    know.
    """

    def __init__(self, *, has_names: bool = False) -> None:
        self.done = False
        self._has_names = has_names
        # The pieces of an unfinished event; joined at its end, because there may be many.
        self._pending: list[str] = []
        # A carriage return at the end of the text may be the first half of a line end.
        self._half_line_end = ""
        self._has_events = False

    def feed(self, value: Any) -> bytes:
        """Return the events that are complete now. Raises CallFailed if the value is no output."""
        if isinstance(value, list):
            return b"".join([self.feed(each) for each in value])
        if value is None or self.done:
            return b""
        if isinstance(value, str):
            return self._feed_text(value)
        if (error := _find_error(value)) is not None:
            raise CallFailed(error)
        if self._has_names and value.get("object") == "response":
            # The output of a job in the background, after its events.
            return b""
        if not (_has_type(value) if self._has_names else _is_chunk(value)):
            raise CallFailed(_invalid_output("a stream of chunks", value))
        self._has_events = True
        return self._encode_event(None, orjson.dumps(value))

    def finish(self) -> bytes:
        """Return the remaining events, `[DONE]` last unless the events have names.

        Raises CallFailed if there was no event.
        """
        if self.done:
            return b""
        rest = "".join(self._pending) + self._half_line_end.replace("\r", "\n")
        self._pending = []
        events = self._build_event(rest)
        if not self._has_events:
            raise CallFailed(_invalid_output("server-sent events", rest))
        if not self.done and not self._has_names:
            events += DONE
        self.done = True
        return events

    def _feed_text(self, text: str) -> bytes:
        text = self._half_line_end + text
        self._half_line_end = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n")
        if not text:
            return b""
        ends_line = bool(self._pending) and self._pending[-1].endswith("\n")
        is_event_end = "\n\n" in text or (ends_line and text.startswith("\n"))
        self._pending.append(text)
        if not is_event_end:
            return b""
        complete, _, rest = "".join(self._pending).rpartition("\n\n")
        self._pending = [rest] if rest else []
        return b"".join([self._build_event(block) for block in complete.split("\n\n")])

    def _build_event(self, block: str) -> bytes:
        """Return the event in a block of lines; nothing for a comment or after `[DONE]`."""
        lines, name = [], None
        for line in block.split("\n"):
            field, _, value = line.partition(":")
            if field == "data":
                lines.append(value.removeprefix(" "))
            elif field == "event":
                name = value.strip()
        data = "\n".join(lines).strip()
        if not data or self.done:
            return b""
        self._has_events = True
        if data == "[DONE]":
            self.done = True
            return DONE
        return self._encode_event(name, _encode_data(data))

    def _encode_event(self, name: str | None, data: bytes) -> bytes:
        head = b""
        if self._has_names and (name := name or _read_type(data)):
            head = b"event: " + name.encode() + b"\n"
        if name == "error" or _ERROR_START.match(data):
            data = _add_request_identity(data)
        return escape_line_separators(head + b"data: " + data + b"\n\n")


def read_body(output: Any) -> dict[str, Any]:
    """Return the response body in a worker's output of a call that is not streamed.

    A worker may return or yield the body, as an object or as JSON text. Raises CallFailed.
    """
    body = output
    while isinstance(body, list) and len(body) == 1:
        [body] = body
    if isinstance(body, list) and all(isinstance(each, str) for each in body):
        body = "".join(body)
    if isinstance(body, str):
        try:
            body = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise CallFailed(_invalid_output("one JSON body", output)) from None
    if (error := _find_error(body)) is not None:
        raise CallFailed(error)
    if not isinstance(body, dict):
        raise CallFailed(_invalid_output("one JSON body", output))
    return body


def describe_job_failure(job: Job) -> ErrorInfo:
    """Return the error of a call whose job ended without completing."""
    if job.status is JobStatus.TIMED_OUT:
        timeout_s = job.policy.execution_timeout_ms / 1000
        return ErrorInfo(f"the call took the worker longer than {timeout_s:g} s", _TIMEOUT)
    if job.status is JobStatus.CANCELLED:
        return ErrorInfo("the job of this call was cancelled", _CANCELLED)
    text = job.error or "the worker failed without a message"
    value = _parse_error_text(text)
    if not isinstance(value, Mapping):
        # The SDK appends the traceback of a generator's error, which clients must not get.
        message = text.partition("\ntraceback:")[0].strip()
        return ErrorInfo(message, ErrorMapping(_DEFAULT_STATUS, "worker_error"))
    # The SDK reports other exceptions of a handler as an object with `error_message`.
    return _read_error({"message": value.get("error_message")} | dict(value), text)


def _parse_error_text(text: str) -> Any:
    """Return the object that a worker's error text encodes; None if it is plain text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    if not text.startswith("{'") or len(text) > _MAX_REPR_CHARS:
        return None
    try:
        # The SDK writes an object that a generator yielded as its Python repr.
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _find_error(value: Any) -> ErrorInfo | None:
    """Return the error if an output is one, because some workers return errors as output.

    A pointer to a result in a bucket is an error too, because OpenAI clients cannot follow it.
    """
    if (pointer := find_result_pointer(value)) is not None:
        return ErrorInfo(f"the answer was put into a bucket: {pointer['url']}", _IN_BUCKET)
    if not isinstance(value, dict) or not (value.get("error") or value.get("object") == "error"):
        return None
    try:
        return _read_error(value, orjson.dumps(value).decode())
    except orjson.JSONEncodeError:
        return _read_error(value, "the worker answered with an error that is nested too deeply")


def _read_error(value: JsonObject, text: str) -> ErrorInfo:
    """Return the error that a worker's error object describes.

    `text` becomes the message if the object has no message.
    """
    inner = value.get("error")
    if isinstance(inner, str):
        inner = {"message": inner}
    error = inner if isinstance(inner, Mapping) else value
    code = error.get("code") or value.get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else _DEFAULT_STATUS
    known_code = code if isinstance(code, str) and code in OPENAI_CODES else None
    if known_code is not None:
        status = OPENAI_CODES[known_code]
    kind = error.get("type")
    if code is None and isinstance(kind, str):
        # Anthropic's errors have no code.
        status = STATUSES.get(kind, status)
    message = error.get("message")
    details = error.get("details")
    if status == 503 and isinstance(details, Mapping):
        # This project's worker sends the same message for every cause; `reason` is specific.
        message = details.get("reason", message)
    param = error.get("param")
    return ErrorInfo(
        message if isinstance(message, str) and message else text,
        ErrorMapping(
            status,
            kind if isinstance(kind, str) else "worker_error",
            name=known_code,
            code=known_code,
        ),
        param if isinstance(param, str) else None,
    )


def _invalid_output(expected: str, value: Any) -> ErrorInfo:
    return ErrorInfo(
        f"the worker's output must be {expected}, got {describe_value(value)}", _INVALID_OUTPUT
    )


def _add_request_identity(data: bytes) -> bytes:
    """Return the data of an error's event with the id of the request.

    OpenAI's clients read the members of the error object; the error events of other APIs have the
    id outside of it.
    """
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data
    if not isinstance(body, dict):
        return data
    error = body.get("error")
    target = error if isinstance(error, dict) and body.get("type") != "error" else body
    for name, value in request_identity().items():
        target.setdefault(name, value)
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:
        # Nested too deeply to be encoded again.
        return data


def _is_chunk(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("choices"), list)
        and value.get("object") != "chat.completion"
    )


def _has_type(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _read_type(data: bytes) -> str | None:
    """Return the type of an event that its data states, by which clients know it."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    # A line end would forge another event.
    return "".join(value["type"].split()) if _has_type(value) else None


def _encode_data(data: str) -> bytes:
    """Return an event's data on one line if possible."""
    if "\n" in data:
        try:
            return orjson.dumps(orjson.loads(data))
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            # Not JSON, or nested too deeply to be encoded again.
            return data.replace("\n", "\ndata: ").encode()
    return data.encode()
