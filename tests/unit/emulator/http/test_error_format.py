from __future__ import annotations

from typing import Any

import pytest

from emulator.http.error_format import ErrorFormat, build_error_body, find_error_format
from handler.errors import ErrorInfo, ErrorMapping

FAILURE = ErrorInfo("tail must be a number", ErrorMapping(400, "invalid_request_error"), "tail")
BUSY = ErrorInfo("the model loads", ErrorMapping(503, "service_unavailable_error"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2/my-ep/run", ErrorFormat.RUNPOD),
        ("/v2/my-ep/status/1", ErrorFormat.RUNPOD),
        ("/v2/my-ep/nonsense", ErrorFormat.RUNPOD),
        ("/v2/my-ep/job-take/w", ErrorFormat.RUNPOD),
        ("/v2/serverless/run", ErrorFormat.RUNPOD),
        ("/run", ErrorFormat.RUNPOD),
        ("/purge-queue", ErrorFormat.RUNPOD),
        ("/v2/serverless/my-ep/workers", ErrorFormat.PROBLEM),
        ("/v2/serverless/my-ep/workers/w/logs", ErrorFormat.PROBLEM),
        ("/v2/my-ep/openai/v1/chat/completions", ErrorFormat.OPENAI),
        ("/v1/chat/completions", ErrorFormat.OPENAI),
        ("/v1/batches/b/cancel", ErrorFormat.OPENAI),
        ("/v3/completions", ErrorFormat.OPENAI),
        ("/console/jobs", ErrorFormat.OPENAI),
        ("/health", ErrorFormat.OPENAI),
        ("/nonsense", ErrorFormat.OPENAI),
        ("/", ErrorFormat.OPENAI),
        ("/chat/completions", ErrorFormat.NAMED),
        ("/system/status", ErrorFormat.NAMED),
        ("/api/chat", ErrorFormat.RUNPOD),
        ("/v1/messages", ErrorFormat.MESSAGES),
        ("/v1/messages/count_tokens", ErrorFormat.MESSAGES),
        ("/v1/messages2", ErrorFormat.OPENAI),
    ],
)
def test_format_is_that_of_the_api_of_the_path(path: str, expected: ErrorFormat) -> None:
    assert find_error_format({"path": path}) is expected


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
