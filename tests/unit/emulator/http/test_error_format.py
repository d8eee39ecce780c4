from __future__ import annotations

from typing import Any

import pytest

from emulator.http.error_format import ErrorFormat, build_error_body
from handler.errors import ErrorInfo, ErrorMapping

FAILURE = ErrorInfo("tail must be a number", ErrorMapping(400, "invalid_request_error"), "tail")
BUSY = ErrorInfo("the model loads", ErrorMapping(503, "service_unavailable_error"))


@pytest.mark.parametrize(
    ("error_format", "body"),
    [
        (
            ErrorFormat.RUNPOD,
            {"error": "tail must be a number", "param": "tail", "request_id": "r1"},
        ),
        (
            ErrorFormat.PROBLEM,
            {
                "title": "Bad Request",
                "status": 400,
                "detail": "tail must be a number",
                "errors": [{"location": "tail"}],
                "request_id": "r1",
            },
        ),
        (
            ErrorFormat.NAMED,
            {
                "error": {
                    "code": "invalid_request",
                    "message": "tail must be a number",
                    "param": "tail",
                    "request_id": "r1",
                }
            },
        ),
        (
            ErrorFormat.MESSAGES,
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "tail must be a number"},
                "request_id": "r1",
            },
        ),
        (
            ErrorFormat.OPENAI,
            {
                "error": {
                    "message": "tail must be a number",
                    "type": "invalid_request_error",
                    "param": "tail",
                    "code": 400,
                    "request_id": "r1",
                }
            },
        ),
    ],
)
def test_body_has_the_sentence_the_field_and_the_request(
    error_format: ErrorFormat, body: dict[str, Any]
) -> None:
    assert build_error_body(FAILURE, error_format, "r1") == body


def test_runpods_body_is_only_the_sentence_without_a_field_and_a_request() -> None:  # R68
    assert build_error_body(BUSY, ErrorFormat.RUNPOD, None) == {"error": "the model loads"}
