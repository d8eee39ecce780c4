"""Prepare error messages for the log: one line, without texts of clients."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.value_description import describe_value
from handler.apis.calls import CALL_ROUTES, find_format
from handler.errors import InvalidRequest, error_info
from handler.logs.reasons import extract_error_message, sanitize_for_log

SECRET = "xyzzy prompt"


@pytest.mark.parametrize(
    "value", [SECRET, SECRET * 20, f'{SECRET} "quoted" \\', [SECRET], {"a": SECRET}]
)
def test_text_of_a_client_is_left_out_of_a_message(value: Any) -> None:
    message = sanitize_for_log(f"stop must be a string, got {describe_value(value)}")
    assert message.startswith("stop must be a string, got a")
    assert "xyzzy" not in message


@pytest.mark.parametrize("value", [5, -1.5, True, None])
def test_numbers_are_kept_in_a_message(value: Any) -> None:
    message = f"temperature must be a number from 0 to 2, got {describe_value(value)}"
    assert sanitize_for_log(message) == message


def test_message_is_one_line_of_bounded_length() -> None:
    message = sanitize_for_log("a\nb\r\n" + "c" * 10_000)
    assert message.startswith("a b c")
    assert len(message) == 300


def test_what_follows_a_quoted_value_is_kept() -> None:
    assert (
        sanitize_for_log('a is wrong, got "x y": see the docs')
        == "a is wrong, got a string: see the docs"
    )


@pytest.mark.parametrize(
    "error",
    [
        "no luck",
        {"error": "no luck"},
        {"error": {"message": "no luck", "code": 400}},
        {"error": {"code": "bad_request", "message": "no luck"}},
        json.dumps({"error": {"message": "no luck"}}),
        json.dumps({"error": {"message": "no luck"}}).encode(),
    ],
)
def test_message_is_extracted_from_each_form_of_an_error(error: Any) -> None:
    assert extract_error_message(error) == "no luck"


def test_sdk_error_is_its_type_and_message() -> None:
    error = {
        "error_type": "<class 'ValueError'>",
        "error_message": "no luck",
        "error_traceback": "…",
    }
    assert extract_error_message(json.dumps(error)) == "ValueError: no luck"


def test_reason_of_a_503_replaces_its_fixed_message() -> None:
    body = {
        "error": {
            "message": "Completion service temporarily unavailable",
            "details": {"reason": "loading"},
        }
    }
    assert extract_error_message(body) == "loading"


@pytest.mark.parametrize("error", [b"<html>", b"", None, 5, {"detail": 1}, "{not json"])
def test_other_bodies_have_no_message_or_are_one(error: Any) -> None:
    assert extract_error_message(error) == (error if isinstance(error, str) else None)


def test_message_of_our_own_errors_is_extracted() -> None:
    failure = error_info(InvalidRequest("n must be 1", "n"))
    assert extract_error_message(failure.openai_error()) == "n must be 1"
    assert extract_error_message(failure.named_error()) == "n must be 1"
    for route in CALL_ROUTES:
        body = find_format(route).encode_error(failure)
        assert extract_error_message(json.dumps(body)) == "n must be 1", route
