"""Log lines: one renderer for all loggers, on stderr, nothing in them but what was said."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from handler.logs import configure_logging

logger = logging.getLogger("some.module")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def fail() -> None:
    api_key = "hunter2"  # what a frame's local variables may hold
    raise RuntimeError(f"no luck with {len(api_key)} characters")


def test_json_is_one_object_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    # R55
    configure_logging("INFO", "json")
    logger.info("slot %d is free", 3)
    logger.debug("too quiet")
    structlog.stdlib.get_logger("other").warning("queue full", waiting=5)
    out, err = capsys.readouterr()
    assert out == ""
    first, second = map(json.loads, err.splitlines())
    assert first["event"] == "slot 3 is free"
    assert first["level"] == "info"
    assert first["logger"] == "some.module"
    assert first["timestamp"].endswith("Z")
    assert second["event"] == "queue full"
    assert second["waiting"] == 5
    assert second["logger"] == "other"


def test_context_is_in_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    # R55
    configure_logging("INFO", "json")
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        logger.info("started")
    logger.info("idle")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["request_id"] == "r-1"
    assert "request_id" not in second


@pytest.mark.parametrize("style", ["json", "console"])
def test_traceback_without_local_variables(
    style: Literal["json", "console"], capsys: pytest.CaptureFixture[str]
) -> None:
    # R52: what a frame holds may be a key or somebody's prompt.
    configure_logging("INFO", style)
    try:
        fail()
    except RuntimeError:
        logger.exception("it went wrong")
    err = capsys.readouterr().err
    assert "it went wrong" in err
    assert "no luck with 7 characters" in err
    assert "RuntimeError" in err
    assert "hunter2" not in err
    if style == "json":
        assert len(err.splitlines()) == 1
        assert json.loads(err)["exception"][0]["exc_type"] == "RuntimeError"


@pytest.mark.parametrize(
    ("level", "seen"),
    [
        ("DEBUG", ["debug", "info", "warning", "error"]),
        ("WARNING", ["warning", "error"]),
        ("ERROR", ["error"]),
    ],
)
def test_level_is_the_least_that_is_written(
    level: str, seen: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(level, "json")
    for name in ("debug", "info", "warning", "error"):
        getattr(logger, name)("x")
    lines = map(json.loads, capsys.readouterr().err.splitlines())
    assert [line["level"] for line in lines] == seen


def test_auto_is_json_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "auto")
    logger.info("hello")
    assert json.loads(capsys.readouterr().err)["event"] == "hello"


def test_console_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "console")
    logger.info("hello")
    out, err = capsys.readouterr()
    assert out == ""
    assert "hello" in err
    assert not err.startswith("{")
