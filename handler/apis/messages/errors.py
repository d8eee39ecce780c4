"""Encode errors as the Messages API does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from common.json_object import JsonObject
from engine.errors import PromptTooLong
from handler.errors import ErrorInfo

# Anthropic's error types by status.
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# The other way round, also for the types of all other statuses.
STATUSES: Mapping[str, int] = {
    **{kind: status for status, kind in _TYPES.items()},
    "invalid_request_error": 400,
    "api_error": 500,
}


def encode_error(failure: ErrorInfo, request_id: str | None = None) -> JsonObject:
    """Return the JSON of an error; `request_id` is what the log names the request by."""
    status = failure.mapping.status
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    body = {"type": "error", "error": {"type": kind, "message": failure.message}}
    return body if request_id is None else body | {"request_id": request_id}


@contextmanager
def naming_prompt_length() -> Iterator[None]:
    """Report a prompt that does not fit in the words that clients such as Claude Code search for.

    They shorten the conversation then, and send it again.
    """
    try:
        yield
    except PromptTooLong as error:
        tokens, limit = error.details.get("prompt_tokens"), error.details.get("context_length")
        size = "" if tokens is None or limit is None else f": {tokens} tokens > {limit} maximum"
        message = f"prompt is too long{size} ({error.message})"
        raise PromptTooLong(message, **error.details) from error
