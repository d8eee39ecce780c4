"""Encode errors with Anthropic's types."""

from __future__ import annotations

import pytest

from engine.errors import PromptTooLong
from handler.apis.messages.errors import encode_error, naming_prompt_length
from handler.errors import ErrorInfo, ErrorMapping


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_type_depends_on_the_status(status: int, kind: str) -> None:
    failure = ErrorInfo("no", ErrorMapping(status, "any"))
    assert encode_error(failure) == {"type": "error", "error": {"type": kind, "message": "no"}}
    assert encode_error(failure, "r1")["request_id"] == "r1"


@pytest.mark.parametrize(
    ("details", "message"),
    [
        ({"prompt_tokens": 9, "context_length": 5}, "prompt is too long: 9 tokens > 5 maximum (x)"),
        ({}, "prompt is too long (x)"),
    ],
)
def test_prompt_that_does_not_fit_is_named_as_clients_expect(
    details: dict[str, int], message: str
) -> None:
    with pytest.raises(PromptTooLong) as caught, naming_prompt_length():
        raise PromptTooLong("x", **details)
    assert caught.value.message == message
    assert caught.value.details == details
