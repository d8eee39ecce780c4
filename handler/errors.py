"""Map exceptions to the errors that clients receive.

    HandlerError
    ├── InvalidRequest           a field is missing or wrong; `param` names it
    ├── NotFound                 no such route or job
    │   └── ModelNotFound        no such model
    ├── UnsupportedMediaType     the body is not labelled JSON
    ├── PayloadTooLarge          the body is larger than MAX_BODY_MB
    ├── ResultTooLarge           the answer is larger than RunPod's limit
    └── ResultNotKept            the answer could not be written to its bucket

The engine's errors are a second tree, in `engine.errors`. A test walks both and fails if a class
has no entry in `ERROR_MAPPING`. Every other exception is a bug of this project: it is logged with
its traceback, and the client receives an internal error without one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine import errors as engine

logger = logging.getLogger(__name__)

# Clients match on this message, so it is the same for every cause; `details` has the reason.
UNAVAILABLE = "Completion service temporarily unavailable"


class HandlerError(Exception):
    """Base of the errors outside the engine; `message` is one sentence for the client."""

    def __init__(
        self, message: str, param: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.details = dict(details or {})


class InvalidRequest(HandlerError):
    """A field of the request is missing or has a value that is not allowed."""


class NotFound(HandlerError):
    """The route, job or model that the request names does not exist."""


class ModelNotFound(NotFound):
    """The model that the request names is not served; `details` lists the served models."""


class UnsupportedMediaType(HandlerError):
    """The body's content type is not JSON."""


class PayloadTooLarge(HandlerError):
    """The body is larger than MAX_BODY_MB."""


class ResultTooLarge(HandlerError):
    """The answer is larger than the platform's limit; the message names both sizes."""


class ResultNotKept(HandlerError):
    """The answer could not be written to its bucket; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class ErrorMapping:
    """How one class of error is reported: HTTP status, OpenAI's error type, and whether to retry.

    `name` is the code in dialects whose codes are names. None: the type without `_error`.
    `code` is the code in the other dialects if OpenAI's clients compare it. None: the status.
    """

    status: int
    type: str
    retryable: bool = False
    name: str | None = None
    code: str | None = None


# OpenAI's codes that clients compare, with their statuses.
OPENAI_CODES: Mapping[str, int] = {
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "rate_limit_exceeded": 429,
}
# Too many requests, waiting or in a period.
RATE_LIMITED = ErrorMapping(
    429, "rate_limit_error", retryable=True, name="rate_limit_exceeded", code="rate_limit_exceeded"
)
ERROR_MAPPING: dict[type[Exception], ErrorMapping] = {
    HandlerError: ErrorMapping(400, "invalid_request_error"),
    InvalidRequest: ErrorMapping(400, "invalid_request_error"),
    NotFound: ErrorMapping(404, "not_found_error", name="not_found"),
    ModelNotFound: ErrorMapping(
        404, "not_found_error", name="model_not_found", code="model_not_found"
    ),
    UnsupportedMediaType: ErrorMapping(415, "invalid_request_error"),
    PayloadTooLarge: ErrorMapping(413, "invalid_request_error"),
    ResultTooLarge: ErrorMapping(413, "result_too_large_error"),
    ResultNotKept: ErrorMapping(502, "result_not_kept_error"),
    engine.EngineError: ErrorMapping(500, "engine_error"),
    engine.RequestRejected: ErrorMapping(400, "invalid_request_error"),
    engine.PromptTooLong: ErrorMapping(
        400,
        "invalid_request_error",
        name="context_length_exceeded",
        code="context_length_exceeded",
    ),
    engine.UnsupportedParameter: ErrorMapping(400, "invalid_request_error"),
    engine.QueueFull: RATE_LIMITED,
    engine.EngineUnavailable: ErrorMapping(503, "service_unavailable_error", retryable=True),
    engine.ModelLoadFailed: ErrorMapping(503, "service_unavailable_error"),
    engine.EngineDead: ErrorMapping(503, "service_unavailable_error"),
    engine.EngineRestarting: ErrorMapping(503, "service_unavailable_error", retryable=True),
    engine.EngineClosed: ErrorMapping(503, "service_unavailable_error", retryable=True),
    engine.GenerationFailed: ErrorMapping(500, "engine_error"),
    engine.BackendFailed: ErrorMapping(500, "engine_error"),
    engine.EngineCrashed: ErrorMapping(500, "engine_error", retryable=True),
    engine.EngineReplaced: ErrorMapping(500, "engine_error", retryable=True),
    engine.EngineStalled: ErrorMapping(504, "timeout_error", retryable=True),
    engine.ConsumerTooSlow: ErrorMapping(500, "engine_error"),
    engine.GenerationTimeout: ErrorMapping(504, "timeout_error", retryable=True),
    engine.GenerationCancelled: ErrorMapping(499, "cancelled_error"),
}
INTERNAL_ERROR = ErrorMapping(500, "internal_error")


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """One error, which can be encoded in each of the dialects.

    `openai_message` is the message for clients of OpenAI if they search it for OpenAI's words.
    """

    message: str
    mapping: ErrorMapping
    param: str | None = None
    retry_after_s: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    openai_message: str | None = None

    def job_error(self) -> str:
        """Return the one string that a RunPod job's `error` must be (a dict there is lost)."""
        return self.message

    def openai_error(self) -> dict[str, Any]:
        """Return OpenAI's error object, whose code is a known one or the HTTP status."""
        error: dict[str, Any] = {
            "message": self.openai_message or self.message,
            "type": self.mapping.type,
            "param": self.param,
            "code": self.mapping.code or self.mapping.status,
        }
        if self.mapping.status == 503:
            error |= {"message": UNAVAILABLE, "details": {"reason": self.message}}
        return {"error": error}

    def named_error(self) -> dict[str, Any]:
        """Return the `oracle` dialect's error object, whose code is a name."""
        error: dict[str, Any] = {
            "code": self.mapping.name or self.mapping.type.removesuffix("_error"),
            "message": self.message,
        }
        if self.param is not None:
            error["param"] = self.param
        details = dict(self.details)
        if self.mapping.status == 429:
            # Clients of the `oracle` dialect wait for this many seconds.
            details.setdefault("retry_after", self.retry_after_s or 1)
        if details:
            error["details"] = details
        return {"error": error}


class CallFailed(Exception):
    """A call has no answer; `info` is the error that its client gets instead."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


def error_info(error: BaseException) -> ErrorInfo:
    """Return an exception as an error for clients.

    An exception that is not in `ERROR_MAPPING` is logged; the client receives no details of it.
    """
    if isinstance(error, CallFailed):
        return error.info
    for cls in type(error).__mro__:
        mapping = ERROR_MAPPING.get(cls)
        if mapping is None:
            continue
        if isinstance(error, HandlerError):
            return ErrorInfo(error.message, mapping, error.param, details=error.details)
        if isinstance(error, engine.EngineError):
            details = error.details
            param = details.get("param")
            openai_message = None
            if isinstance(error, engine.PromptTooLong):
                param = param or "prompt"
                openai_message = _describe_context_length(error, str(param))
            retry_after = details.get("retry_after_s")
            return ErrorInfo(
                error.message,
                mapping,
                str(param) if param is not None else None,
                retry_after if isinstance(retry_after, int) else None,
                openai_message=openai_message,
            )
    logger.error("an unexpected error ended a request", exc_info=error)
    return ErrorInfo(
        "an internal error ended this request; the log has the details", INTERNAL_ERROR
    )


def _describe_context_length(error: engine.PromptTooLong, param: str) -> str | None:
    """Return the message that LiteLLM and others recognise by OpenAI's words in it.

    None if the numbers of tokens are not known.
    """
    tokens, limit = error.details.get("prompt_tokens"), error.details.get("context_length")
    if tokens is None or limit is None:
        return None
    # Not all tokens of a very long prompt are counted.
    is_exact = not re.search(r"(more than|at least) \d+ tokens", error.message)
    at_least = "" if is_exact else "at least "
    return (
        f"This model's maximum context length is {limit} tokens. However, your {param} resulted in "
        f"{at_least}{tokens} tokens. Please reduce the length of the {param}. "
        # LangChain searches the message for the code.
        "(context_length_exceeded)"
    )
