"""The errors of servers, in the forms that they have."""

from __future__ import annotations

import pytest

from engine.backends.openai.server_errors import build_error, read_error, read_retry_after
from engine.errors import BackendFailed, EngineCrashed, EngineError, PromptTooLong, RequestRejected

URL = "http://server/v1/chat/completions"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"error": {"message": "no such model", "type": "x"}}', "no such model"),
        (b'{"error": "model not found"}', "model not found"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        (b"", "no text"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_message_of_an_error_is_found(content: bytes, message: str) -> None:
    assert read_error(content)[0] == message


def test_long_message_is_cut() -> None:
    assert len(read_error(b"x" * 10_000)[0]) == 300


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, RequestRejected),
        (404, RequestRejected),
        (413, RequestRejected),
        (422, RequestRejected),
        (401, BackendFailed),
        (403, BackendFailed),
        (307, BackendFailed),
        (409, BackendFailed),
        (500, EngineCrashed),
        (502, EngineCrashed),
        (504, EngineCrashed),
    ],
)
def test_status_decides_whether_the_request_or_the_server_failed(
    status: int, expected: type[EngineError]
) -> None:
    error = build_error(URL, status, b'{"error": {"message": "why"}}')
    assert type(error) is expected
    assert str(status) in error.message


def test_parameter_of_a_refusal_is_kept() -> None:
    error = build_error(URL, 400, b'{"error": {"message": "wrong", "param": "top_p"}}')
    assert error.details == {"param": "top_p"}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("wrong", "top_p: the server refused the request with status 400: wrong"),
        ("top_p: wrong", "top_p: wrong"),
        ("top_please", "top_p: the server refused the request with status 400: top_please"),
    ],
)
def test_refusal_begins_with_the_parameter_so_that_it_can_be_renamed(
    message: str, expected: str
) -> None:
    content = f'{{"error": {{"message": "{message}", "param": "top_p"}}}}'.encode()
    error = build_error(URL, 400, content)
    assert isinstance(error, RequestRejected)
    assert error.message == expected
    assert error.rename_param("top_p", "topP").message == f"topP{expected.removeprefix('top_p')}"


@pytest.mark.parametrize(
    "message",
    [
        "However, your messages resulted in 90 tokens.",
        "However, you requested 99 tokens (90 in the messages, 9 in the completion).",
        "However, your request has 90 input tokens.",
    ],
)
def test_lengths_of_a_prompt_that_is_too_long_are_read(message: str) -> None:
    sentence = f"This model's maximum context length is 50 tokens. {message}"
    error = build_error(URL, 400, f'{{"message": "{sentence}"}}'.encode())
    assert error.details == {"prompt_tokens": 90, "context_length": 50}
    assert error.message == "prompt: 90 tokens do not fit the context of 50 tokens"


def test_number_of_tokens_that_is_a_lower_bound_stays_one() -> None:
    sentence = "maximum context length is 5 tokens. Your input resulted in at least 9 tokens."
    content = f'{{"error": {{"message": "{sentence}", "param": "input"}}}}'.encode()
    error = build_error(URL, 400, content)
    assert error.details == {"param": "input", "prompt_tokens": 9, "context_length": 5}
    assert error.message == "input: at least 9 tokens do not fit the context of 5 tokens"


@pytest.mark.parametrize(
    "content",
    [
        b'{"error": {"message": "This model\'s maximum context length is 4096 tokens."}}',
        b'{"error": {"message": "too long", "code": "context_length_exceeded"}}',
        b'{"error": {"type": "exceed_context_size_error", "message": "the request exceeds the '
        b'available context size"}}',
        b'{"object": "error", "message": "The input (9000 tokens) is longer than the model\'s '
        b'context length (4096 tokens)."}',
    ],
    ids=["OpenAI", "code", "llama-server", "SGLang"],
)
def test_prompt_that_is_too_long_is_known_by_its_words(content: bytes) -> None:
    assert isinstance(build_error(URL, 400, content), PromptTooLong)


def test_key_is_not_in_the_error() -> None:
    error = build_error(URL, 401, b'{"error": {"message": "Incorrect API key: sk-secret"}}')
    assert "secret" not in error.message
    assert "UPSTREAM_KEY" in error.message


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7.0), ("0.5", 0.5), ("-1", 0.0), ("99999", 300.0), ("soon", None)]
)
def test_time_to_wait_is_read(value: str, seconds: float | None) -> None:
    assert read_retry_after({"retry-after": value}) == seconds
