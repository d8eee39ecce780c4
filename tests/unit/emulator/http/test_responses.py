"""Errors on the wire (R53, R54)."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from emulator.http.responses import JSON, error_response, on_error, on_http_error
from engine.errors import EngineDead, PromptTooLong, QueueFull
from handler.errors import ErrorInfo, ErrorMapping, InvalidRequest
from tests.unit.emulator.server_routes import with_route

REQUEST = Request(
    with_route({"type": "http", "method": "PUT", "path": "/v1/chat/completions", "headers": []})
)


def read_error(response: Response) -> dict[str, Any]:
    body = json.loads(bytes(response.body))
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    return error


def test_json_is_utf8() -> None:
    response = JSON({"text": "é"}, 201)
    assert response.status_code == 201
    assert response.headers["content-type"] == "application/json"
    assert bytes(response.body) == '{"text":"é"}'.encode()


async def test_error_has_its_parameter_and_code() -> None:
    response = await on_error(REQUEST, InvalidRequest("top_p must be less", "top_p"))
    assert response.status_code == 400
    assert read_error(response) == {
        "message": "top_p must be less",
        "type": "invalid_request_error",
        "param": "top_p",
        "code": 400,
    }
    assert "retry-after" not in response.headers


async def test_engine_errors_have_their_statuses() -> None:
    full = await on_error(REQUEST, QueueFull("full", retry_after_s=7))
    assert (full.status_code, full.headers["retry-after"]) == (429, "7")
    long = await on_error(REQUEST, PromptTooLong("9 tokens do not fit 8"))
    assert (long.status_code, read_error(long)["param"]) == (400, "prompt")


async def test_dead_engine_has_the_specified_message() -> None:  # R54
    response = await on_error(REQUEST, EngineDead("it crashed 5 times"))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    error = read_error(response)
    assert error["message"] == "Completion service temporarily unavailable"
    assert (error["type"], error["code"]) == ("service_unavailable_error", 503)
    assert error["details"] == {"reason": "it crashed 5 times"}


@pytest.mark.parametrize(("status", "has"), [(429, True), (503, True), (500, False), (504, False)])
def test_retry_after_is_sent_with_429_and_503_only(status: int, has: bool) -> None:
    response = error_response(ErrorInfo("no", ErrorMapping(status, "some_error")), REQUEST.scope)
    assert ("retry-after" in response.headers) is has


async def test_unknown_exception_is_only_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        response = await on_error(REQUEST, KeyError("secret"))
    assert response.status_code == 500
    assert b"secret" not in response.body
    assert read_error(response)["type"] == "internal_error"
    assert "secret" in caplog.text


async def test_unknown_path_and_method_have_the_same_format() -> None:
    missing = await on_http_error(REQUEST, HTTPException(404))
    assert read_error(missing) == {
        "message": "PUT /v1/chat/completions is not supported here; /openapi.json has the routes "
        "of this server",
        "type": "not_found_error",
        "param": None,
        "code": 404,
    }
    wrong = await on_http_error(REQUEST, HTTPException(405, headers={"Allow": "POST"}))
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert read_error(wrong)["type"] == "invalid_request_error"


async def test_http_error_handler_answers_other_exceptions() -> None:
    assert (await on_http_error(REQUEST, InvalidRequest("no"))).status_code == 400
