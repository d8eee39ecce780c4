"""The format of an error's body, which depends on the API that the route belongs to."""

from __future__ import annotations

from enum import Enum
from http import HTTPStatus

from common.json_object import JsonObject
from handler.apis.messages.errors import encode_error
from handler.errors import ErrorInfo


class ErrorFormat(Enum):
    """The formats of error bodies; each API's own clients can read its format."""

    # OpenAI's error object, whose code is the HTTP status.
    OPENAI = "openai"
    # The same with a name for the code: the `oracle` dialect, whose routes have no prefix.
    NAMED = "named"
    # RunPod's job API, and Ollama's API: `{"error": "sentence"}`.
    RUNPOD = "runpod"
    # RunPod's REST API v2.
    PROBLEM = "application/problem+json"
    # Anthropic's Messages API.
    MESSAGES = "messages"


def build_error_body(
    failure: ErrorInfo, error_format: ErrorFormat, request_id: str | None
) -> JsonObject:
    """Return the JSON of an error; `request_id` is what the log names the request by."""
    identity = {} if request_id is None else {"request_id": request_id}
    if error_format is ErrorFormat.RUNPOD:
        param = {} if failure.param is None else {"param": failure.param}
        return {"error": failure.message, **param, **identity}
    if error_format is ErrorFormat.PROBLEM:
        status = failure.mapping.status
        errors = [] if failure.param is None else [{"location": failure.param}]
        return {
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": failure.message,
            "errors": errors,
            **identity,
        }
    if error_format is ErrorFormat.MESSAGES:
        return encode_error(failure, request_id)
    body = failure.named_error() if error_format is ErrorFormat.NAMED else failure.openai_error()
    body["error"] |= identity
    return body
