"""Turn a server's refusals and failures into the engine's errors."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from engine.errors import (
    BackendFailed,
    EngineCrashed,
    EngineError,
    PromptTooLong,
    RequestRejected,
)

# Statuses of a server that works, and is too busy for another request.
BUSY = frozenset({429, 503, 529})
_NOT_ALLOWED = frozenset({401, 403})
_REFUSED = frozenset({400, 404, 413, 415, 422, 501})
_MAX_RETRY_AFTER_S = 300.0
_MAX_EXCERPT_CHARS = 300
# OpenAI, vLLM, SGLang, llama-server and Ollama write of it in these words.
_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|maximum context|longer than the model|too many tokens",
    re.IGNORECASE,
)
# The numbers in OpenAI's words, and in those of vLLM, which begin in the same way.
_LIMIT = re.compile(r"maximum context length is (\d+) tokens")
_TOKENS = re.compile(
    r"resulted in (?:at least )?(\d+) tokens|(\d+) in the (?:messages|prompt)"
    r"|has (\d+) input tokens"
)
_TOO_LONG_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})


class ServerBusy(Exception):
    """The server did not take the request, which can be sent again; the message says why.

    `retry_after_s` is how long the server asks to wait, None if it does not.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


def build_error(url: str, status: int, content: bytes) -> EngineError:
    """Return the error for an answer with a status of failure and no answer in it.

    Failures of the server count as crashes of the engine, so jobs and lines are tried again.
    """
    if status in _NOT_ALLOWED:
        # The server's own words may contain a part of the key.
        return BackendFailed(f"{url} refuses UPSTREAM_KEY with status {status}")
    message, error = read_error(content)
    if status in _REFUSED:
        return _build_refusal(message, error, status)
    sentence = f"{url} answered with status {status}: {message}"
    return EngineCrashed(sentence) if status >= 500 else BackendFailed(sentence)


def _build_refusal(message: str, error: Mapping[str, Any], status: int) -> RequestRejected:
    param = error.get("param")
    details = {"param": param} if isinstance(param, str) else {}
    is_too_long = {error.get("code"), error.get("type")} & _TOO_LONG_CODES
    if is_too_long or _TOO_LONG.search(message):
        return _build_too_long(message, error, status)
    return RequestRejected(_begin_with(details.get("param"), message, status), **details)


def _build_too_long(message: str, error: Mapping[str, Any], status: int) -> PromptTooLong:
    """Return the error in the engine's own words if both numbers of tokens are known.

    A prompt of a chat and one of text have the same name, which is that without `param`.
    """
    is_input = error.get("param") == "input"
    param, details = ("input", {"param": "input"}) if is_input else ("prompt", {})
    tokens, limit = _read_number(_TOKENS, message), _read_number(_LIMIT, message)
    if tokens is None or limit is None:
        return PromptTooLong(_begin_with(param, message, status), **details)
    at_least = "at least " if f"at least {tokens} tokens" in message else ""
    return PromptTooLong(
        f"{param}: {at_least}{tokens} tokens do not fit the context of {limit} tokens",
        prompt_tokens=tokens,
        context_length=limit,
        **details,
    )


def _begin_with(param: str | None, message: str, status: int) -> str:
    """Return a refusal that begins with the name of the parameter, which may be renamed later."""
    if param is None:
        return f"the server refused the request with status {status}: {message}"
    if re.match(rf"{re.escape(param)}\b", message):
        return message
    return f"{param}: the server refused the request with status {status}: {message}"


def _read_number(pattern: re.Pattern[str], message: str) -> int | None:
    match = pattern.search(message)
    return None if match is None else int(next(filter(None, match.groups())))


def read_error(content: bytes) -> tuple[str, Mapping[str, Any]]:
    """Return the message of an error's body, and its object if it has one.

    OpenAI has `{"error": {"message": …}}`, Ollama `{"error": "…"}`, FastAPI `{"detail": …}`, and
    older versions of vLLM `{"message": …}`.
    """
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content.decode("utf-8", "replace")[:_MAX_EXCERPT_CHARS].strip() or "no text", {}
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return _shorten(error), {}
    return _shorten(error.get("message") or error.get("detail") or error), error


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text[:_MAX_EXCERPT_CHARS]


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After`, which may be a number or a date (RFC 9110, 10.2.3)."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError):
            return None
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_S)


def describe_failure(error: Exception) -> str:
    """Return the message of a failed connection; some have none."""
    return str(error) or type(error).__name__
