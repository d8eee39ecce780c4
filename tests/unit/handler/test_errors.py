"""Map every exception to an error, and encode it in each dialect."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from engine import errors as engine
from handler import errors
from handler.errors import ERROR_MAPPING, UNAVAILABLE, ErrorInfo, HandlerError, error_info

INTERNAL_MESSAGE = "an internal error ended this request; the log has the details"


def handler_errors(root: type[HandlerError] = HandlerError) -> Iterator[type[HandlerError]]:
    # Only what the module defines: a test may have made a subclass of its own.
    if root.__module__ == errors.__name__:
        yield root
    for child in root.__subclasses__():
        yield from handler_errors(child)


def engine_errors() -> Iterator[type[engine.EngineError]]:
    return (cls for cls in engine.engine_errors() if cls.__module__ == engine.__name__)


def test_every_error_has_a_row_and_every_row_an_error() -> None:
    assert set(ERROR_MAPPING) == {*handler_errors(), *engine_errors()}


# The codes that R53 and R54 name, and those of OpenAI's own errors; 499 is nginx's for a client
# that left.
STATUSES = {
    "HandlerError": 400,
    "InvalidRequest": 400,
    "NotFound": 404,
    "ModelNotFound": 404,
    "UnsupportedMediaType": 415,
    "PayloadTooLarge": 413,
    "ResultTooLarge": 413,
    "ResultNotKept": 502,
    "EngineError": 500,
    "RequestRejected": 400,
    "PromptTooLong": 400,
    "UnsupportedParameter": 400,
    "QueueFull": 429,
    "EngineUnavailable": 503,
    "ModelLoadFailed": 503,
    "EngineDead": 503,
    "EngineRestarting": 503,
    "EngineClosed": 503,
    "GenerationFailed": 500,
    "BackendFailed": 500,
    "EngineCrashed": 500,
    "EngineReplaced": 500,
    "EngineStalled": 504,
    "ConsumerTooSlow": 500,
    "GenerationTimeout": 504,
    "GenerationCancelled": 499,
}


# S1's codes, where they are not the type's name.
NAMES = {
    "NotFound": "not_found",
    "ModelNotFound": "model_not_found",
    "PromptTooLong": "context_length_exceeded",
    "QueueFull": "rate_limit_exceeded",
}
# R64: the codes of OpenAI that its clients compare.
CODES = {name: NAMES[name] for name in ("ModelNotFound", "PromptTooLong", "QueueFull")}


@pytest.mark.parametrize("cls", ERROR_MAPPING, ids=lambda cls: cls.__name__)
def test_error_is_encoded_in_every_dialect(cls: type[Exception]) -> None:
    # R53
    status = STATUSES[cls.__name__]
    failure = error_info(cls("it went wrong"))
    assert failure.mapping is ERROR_MAPPING[cls]
    assert failure.mapping.status == status

    # An object there is lost by the platform (runpod-python#299).
    assert type(failure.job_error()) is str
    assert failure.job_error() == "it went wrong"

    body = failure.openai_error()
    error = body["error"]
    assert list(body) == ["error"]
    assert error["code"] == CODES.get(cls.__name__, status)
    assert error["type"] == failure.mapping.type
    assert error["message"] == (UNAVAILABLE if status == 503 else "it went wrong")
    assert error["param"] == ("prompt" if cls is engine.PromptTooLong else None)

    named = failure.named_error()["error"]
    assert named["message"] == "it went wrong"
    assert named["code"] == NAMES.get(cls.__name__, failure.mapping.type.removesuffix("_error"))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (429, "rate_limit_error"),
        (503, "service_unavailable_error"),
        (504, "timeout_error"),
    ],
)
def test_one_type_a_status(status: int, kind: str) -> None:
    assert {row.type for row in ERROR_MAPPING.values() if row.status == status} == {kind}


def test_temporary_errors_are_retryable() -> None:
    retryable = {cls.__name__ for cls, row in ERROR_MAPPING.items() if row.retryable}
    assert retryable == {
        "QueueFull",
        "EngineUnavailable",
        "EngineRestarting",
        "EngineClosed",
        "EngineCrashed",
        "EngineReplaced",
        "EngineStalled",
        "GenerationTimeout",
    }


def test_unavailable_has_the_exact_message_and_keeps_the_reason() -> None:
    # R54
    failure = error_info(engine.ModelLoadFailed("MODEL_PATH: there is no file x.gguf"))
    assert failure.openai_error() == {
        "error": {
            "message": "Completion service temporarily unavailable",
            "type": "service_unavailable_error",
            "param": None,
            "code": 503,
            "details": {"reason": "MODEL_PATH: there is no file x.gguf"},
        }
    }
    assert failure.job_error() == "MODEL_PATH: there is no file x.gguf"


def test_param_and_retry_after_are_kept() -> None:
    assert error_info(errors.InvalidRequest("x must be y", "x")).param == "x"
    rejected = error_info(engine.UnsupportedParameter("grammar: no", param="grammar"))
    assert rejected.openai_error()["error"]["param"] == "grammar"
    assert error_info(engine.QueueFull("full", retry_after_s=3)).retry_after_s == 3
    assert error_info(engine.QueueFull("full")).retry_after_s is None


def test_oracles_clients_find_how_long_to_wait() -> None:
    # R41: clients of S1 read it there, also where the error has no delay.
    full = error_info(engine.QueueFull("full", retry_after_s=3)).named_error()
    assert full["error"]["details"] == {"retry_after": 3}
    assert (
        error_info(engine.QueueFull("full")).named_error()["error"]["details"]["retry_after"] == 1
    )


def test_subclass_without_a_mapping_uses_its_base() -> None:
    class Newer(engine.QueueFull):
        pass

    failure = error_info(Newer("full of newer things"))
    assert failure.mapping is ERROR_MAPPING[engine.QueueFull]
    assert failure.message == "full of newer things"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret"),
        KeyError("secret"),
        RuntimeError("Traceback (most recent call last): secret"),
        RecursionError("secret"),
        OSError(2, "secret"),
        UnicodeEncodeError("utf-8", "\ud800secret", 0, 1, "secret"),
        ExceptionGroup("secret", [engine.QueueFull("secret")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_unknown_exception_is_anonymous_and_logged(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    # R53
    try:
        raise error
    except Exception as raised:
        failure = error_info(raised)
    assert failure == ErrorInfo(INTERNAL_MESSAGE, errors.INTERNAL_ERROR)
    assert failure.mapping.status == 500
    expected = failure.job_error() + str(failure.openai_error())
    assert "secret" not in expected
    assert "Traceback" not in expected
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_known_errors_are_not_logged_as_unexpected(caplog: pytest.LogCaptureFixture) -> None:
    for cls in ERROR_MAPPING:
        error_info(cls("fine"))
    assert caplog.records == []
