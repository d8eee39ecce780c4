"""What workers say of an OpenAI call, as its client reads it: events, one body, or an error."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import orjson

from handler.errors import ErrorInfo, ErrorMapping
from handler.openai.events import DONE
from handler.results import result_pointer
from handler.sampling import describe_value
from jobs import Job, JobStatus

_FAILED = 500
_NO_ANSWER = ErrorMapping(502, "worker_error")
_IN_BUCKET = ErrorMapping(413, "result_too_large_error")
_TIMEOUT = ErrorMapping(504, "timeout_error", retryable=True)
_CANCELLED = ErrorMapping(499, "cancelled_error")
# More than any worker's sentence about a failure has.
_LONGEST_REPR = 100_000


class CallFailed(Exception):
    """A call has no answer; `problem` is what its client is told instead."""

    def __init__(self, problem: ErrorInfo) -> None:
        super().__init__(problem.message)
        self.problem = problem


class SSEReassembler:
    """Makes whole server-sent events of what a worker streams, however it was cut or wrapped.

    Workers send text that is cut anywhere, in the middle of an event or of its end; chunks as
    objects; or lists of either. Each event goes out as one line of data, which is what all of
    OpenAI's clients read, and what follows `[DONE]` does not go out at all.
    """

    def __init__(self) -> None:
        self.done = False
        self._held = ""
        self._began = False

    def feed(self, value: Any) -> bytes:
        """Return the events that are whole by now. Raises CallFailed for what has no place here."""
        if isinstance(value, list):
            return b"".join([self.feed(each) for each in value])
        if value is None or self.done:
            return b""
        if isinstance(value, str):
            return self._text(value)
        if (failure := _failure(value)) is not None:
            raise CallFailed(failure)
        if not _is_chunk(value):
            raise CallFailed(_no_answer("a stream of chunks", value))
        self._began = True
        return b"data: " + orjson.dumps(value) + b"\n\n"

    def finish(self) -> bytes:
        """Return what is left at the worker's end, `[DONE]` last. Raises CallFailed for nothing."""
        if self.done:
            return b""
        left, self._held = self._held, ""
        block = self._event(left.replace("\r", "\n"))
        if not self._began:
            raise CallFailed(_no_answer("server-sent events", left))
        if not self.done:
            block += DONE
        self.done = True
        return block

    def _text(self, text: str) -> bytes:
        text = self._held + text
        # The other half of a line's end may be in what comes next.
        half = "\r" if text.endswith("\r") else ""
        text = text.removesuffix(half).replace("\r\n", "\n").replace("\r", "\n")
        whole, _, rest = text.rpartition("\n\n")
        self._held = rest + half
        return b"".join([self._event(block) for block in whole.split("\n\n")])

    def _event(self, block: str) -> bytes:
        """Return one event; nothing for a comment, and after the last one."""
        lines = [
            line.removeprefix("data:").removeprefix(" ")
            for line in block.split("\n")
            if line.startswith("data:")
        ]
        data = "\n".join(lines).strip()
        if not data or self.done:
            return b""
        self._began = True
        if data == "[DONE]":
            self.done = True
            return DONE
        return b"data: " + _on_one_line(data) + b"\n\n"


def read_body(output: Any) -> dict[str, Any]:
    """Return the body that a worker answered a call with which is not streamed.

    A worker may return it or yield it, as an object or as its text. Raises CallFailed.
    """
    found = output
    while isinstance(found, list) and len(found) == 1:
        [found] = found
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        found = "".join(found)
    if isinstance(found, str):
        try:
            found = orjson.loads(found)
        except orjson.JSONDecodeError:
            raise CallFailed(_no_answer("one JSON body", output)) from None
    if (failure := _failure(found)) is not None:
        raise CallFailed(failure)
    if not isinstance(found, dict):
        raise CallFailed(_no_answer("one JSON body", output))
    return found


def describe_job_failure(job: Job) -> ErrorInfo:
    """Return what the client of a call is told whose job has ended without an output."""
    if job.status is JobStatus.TIMED_OUT:
        seconds = job.policy.execution_timeout_ms / 1000
        return ErrorInfo(f"the call took the worker longer than {seconds:g} s", _TIMEOUT)
    if job.status is JobStatus.CANCELLED:
        return ErrorInfo("the job of this call was cancelled", _CANCELLED)
    told = job.error or "the worker failed and said nothing"
    said = _read(told)
    if not isinstance(said, Mapping):
        # The SDK's word for what a generator raised; a traceback is not for clients (R53).
        message = told.partition("\ntraceback:")[0].strip()
        return ErrorInfo(message, ErrorMapping(_FAILED, "worker_error"))
    # What else a handler raised, as the SDK tells it.
    return _problem({"message": said.get("error_message")} | dict(said), told)


def _read(told: str) -> Any:
    """Return what a worker's error says where it is an object; None where it is just words."""
    try:
        return orjson.loads(told)
    except orjson.JSONDecodeError:
        pass
    if not told.startswith("{'") or len(told) > _LONGEST_REPR:
        return None
    try:
        # The SDK writes an object that a generator yielded as Python does.
        return ast.literal_eval(told)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _failure(value: Any) -> ErrorInfo | None:
    """Return what is wrong where an output is an error, which some workers return as an answer.

    Where it is a pointer to a result in a bucket, too: no OpenAI client would follow it.
    """
    if (place := result_pointer(value)) is not None:
        return ErrorInfo(f"the answer was put into a bucket: {place['url']}", _IN_BUCKET)
    if not isinstance(value, dict) or not (value.get("error") or value.get("object") == "error"):
        return None
    try:
        return _problem(value, orjson.dumps(value).decode())
    except orjson.JSONEncodeError:
        return _problem(value, "the worker answered with an error that is nested too deeply")


def _problem(said: Mapping[str, Any], whole: str) -> ErrorInfo:
    """Return an error object of a worker as ours; `whole` is its text."""
    inner = said.get("error")
    if isinstance(inner, str):
        inner = {"message": inner}
    error = inner if isinstance(inner, Mapping) else said
    code = error.get("code") or said.get("code")
    known = isinstance(code, int) and 400 <= code <= 599
    status = code if known and isinstance(code, int) else _FAILED
    message = error.get("message")
    details = error.get("details")
    if status == 503 and isinstance(details, Mapping):
        # Our own worker's: the message will be what it was.
        message = details.get("reason", message)
    kind, param = error.get("type"), error.get("param")
    return ErrorInfo(
        message if isinstance(message, str) and message else whole,
        ErrorMapping(status, kind if isinstance(kind, str) else "worker_error"),
        param if isinstance(param, str) else None,
    )


def _no_answer(wanted: str, got: Any) -> ErrorInfo:
    return ErrorInfo(f"the worker's output must be {wanted}, got {describe_value(got)}", _NO_ANSWER)


def _is_chunk(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("choices"), list)
        and value.get("object") != "chat.completion"
    )


def _on_one_line(data: str) -> bytes:
    if "\n" in data:
        try:
            return orjson.dumps(orjson.loads(data))
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            # No JSON, or nested too deeply to be written again.
            return data.replace("\n", "\ndata: ").encode()
    return data.encode()
