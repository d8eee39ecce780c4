"""Configure logging: one formatter for all loggers, to stderr, without secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from engine import BackendConfig
from handler.input.request import TextRequest, parse_job
from handler.logs.configuration import configure_logging
from handler.pipeline import Pipeline
from tests.conftest import EngineFactory, ScriptFactory
from tests.leftovers import restored_loggers

logger = logging.getLogger("some.module")


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    with restored_loggers():
        yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def fail() -> None:
    api_key = "hunter2"  # as a local variable of a frame may be
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
    # R52: local variables may hold a key or a user's prompt.
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
    ("level", "recorded"),
    [
        ("DEBUG", ["debug", "info", "warning", "error"]),
        ("WARNING", ["warning", "error"]),
        ("ERROR", ["error"]),
    ],
)
def test_level_is_the_lowest_severity_that_is_logged(
    level: str, recorded: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(level, "json")
    for name in ("debug", "info", "warning", "error"):
        getattr(logger, name)("x")
    lines = map(json.loads, capsys.readouterr().err.splitlines())
    assert [line["level"] for line in lines] == recorded


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


@pytest.mark.parametrize("texts", [True, False])
async def test_prompts_and_answers_are_logged_only_with_log_texts(
    engine_factory: EngineFactory,
    script: ScriptFactory,
    capsys: pytest.CaptureFixture[str],
    texts: bool,
) -> None:
    # R52: whatever the level is.
    configure_logging("ERROR" if texts else "DEBUG", "json", texts=texts)
    path = script({"pieces": ["the ", "answer"]})
    backend = BackendConfig.from_wire("scripted", {"model_path": str(path)})
    pipeline = Pipeline(engine_factory(backend, isolation="thread"), "tiny")
    for job_input in ({"prompt": "a plain one"}, {"messages": [{"role": "user", "content": "hi"}]}):
        request = parse_job({"id": "j-1", "input": job_input})
        assert isinstance(request, TextRequest)
        await pipeline.run(request)
    err = capsys.readouterr().err
    records = [
        json.loads(line) for line in err.splitlines() if "handler.generation.content_log" in line
    ]
    if not texts:
        assert not records
        assert "plain" not in err
        assert "answer" not in err
        return
    assert [line["event"] for line in records] == ["asked", "answered"] * 2
    assert {line["generation_id"] for line in records} == {"j-1"}
    assert records[0]["prompt"] == "a plain one"
    assert (records[2]["prompt"][0]["role"], records[2]["prompt"][0]["content"]) == ("user", "hi")
    assert records[1]["answer"] == "the answer"


def test_ids_that_a_record_brings_are_fields_and_nothing_else_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # R55
    configure_logging("INFO", "json")
    logger.warning("lost", extra={"job_id": "j-1", "secret": "hunter2"})
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert line["job_id"] == "j-1"
    assert "secret" not in line


@pytest.mark.parametrize("name", ["httpx2", "botocore.auth", "urllib3.connectionpool"])
def test_libraries_do_not_write_down_what_they_send(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # R52: URLs of webhooks and headers with keys, at INFO and DEBUG.
    configure_logging("DEBUG", "json")
    logging.getLogger(name).info("HTTP Request: POST http://host/?token=hunter2")
    logging.getLogger(name).warning("gone")
    assert "hunter2" not in (err := capsys.readouterr().err)
    assert "gone" in err
