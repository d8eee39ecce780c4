"""Format log records for a terminal: aligned, escaped, coloured on terminals only."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest
import structlog

from handler.logs.console import ConsoleFormatter, format_duration, should_use_colours
from handler.logs.json_lines import FIELDS

ANSI = re.compile(r"\x1b\[\d+m")
JOB = "0f2a6a60-8f25-4c35-a4d5-3f54a4b1f7a7-u1"


def format_record(
    text: str, level: int = logging.INFO, *, colours: bool = False, **fields: Any
) -> str:
    record = logging.LogRecord("some.module", level, __file__, 1, text, (), None)
    record.__dict__[FIELDS] = fields
    return ConsoleFormatter(colours=colours).format(record)


def test_info_line_is_time_of_day_and_text() -> None:
    assert re.fullmatch(r"\d\d:\d\d:\d\d  hello", format_record("hello"))


def test_level_is_printed_unless_it_is_info() -> None:
    assert "INFO" not in format_record("hello")
    assert format_record("careful", logging.WARNING).endswith("  WARNING  careful")


def test_ended_job_is_one_line_with_its_times_and_tokens() -> None:
    line = format_record(
        f"job {JOB} COMPLETED",
        job_id=JOB,
        endpoint="default",
        state="COMPLETED",
        worker="local",
        queue_ms=3,
        run_ms=1204,
        tokens=40,
    )
    assert line.endswith(
        f"job {JOB} COMPLETED       default/local  waited 3 ms  ran 1.20 s  40 tokens"
    )


def test_id_of_a_job_is_in_the_first_of_several_lines() -> None:
    formatter = ConsoleFormatter(colours=False)
    lines = []
    for text, fields in (
        ("one", {"job_id": JOB}),
        ("two", {"job_id": JOB}),
        ("three", {}),
        ("four", {"job_id": JOB}),
    ):
        record = logging.LogRecord("some.module", logging.INFO, __file__, 1, text, (), None)
        record.__dict__[FIELDS] = fields
        lines.append(formatter.format(record)[10:])
    assert lines == [f"one  job {JOB}", "two", "three", f"four  job {JOB}"]


def test_lines_of_jobs_align_whatever_their_state() -> None:
    fields: dict[str, Any] = {"endpoint": "default", "worker": "local"}
    lines = [
        format_record(f"job {'sync-' * sync}{JOB} {state}", state=state, **fields)
        for sync in (0, 1)
        for state in ("started", "COMPLETED", "FAILED", "TIMED_OUT")
    ]
    assert len({line.index("default/local") for line in lines}) == 1


@pytest.mark.parametrize(
    ("level", "printed"), [(logging.INFO, False), (logging.WARNING, True), (logging.ERROR, True)]
)
def test_request_id_is_printed_above_level_info(level: int, printed: bool) -> None:
    assert ("r-1" in format_record("GET /x 500", level, request_id="r-1")) is printed


def test_id_is_not_repeated_when_the_text_has_it() -> None:
    assert format_record("job j-1 started", job_id="j-1").count("j-1") == 1
    assert "job j-1" in format_record("the model was slow", job_id="j-1")


def test_mapping_is_a_block_of_aligned_rows() -> None:
    _, *rows = format_record(
        "running", server={"model": "tiny", "slots": 4, "settings": {"PORT": "0", "HOST": "::1"}}
    ).splitlines()
    assert rows == [
        "          model     tiny",
        "          slots     4",
        "          settings  PORT=0  HOST=::1",
    ]


@pytest.mark.parametrize("where", ["text", "error", "endpoint", "job_id", "unknown"])
@pytest.mark.parametrize("hostile", ["a\nb", "a\x1b[2Jb", "a\rb", "a\x9bb", "a\u202eb", "a\ud800b"])
def test_control_characters_of_clients_are_spelled_out(where: str, hostile: str) -> None:
    fields: dict[str, Any] = {where: hostile}
    line = format_record(hostile) if where == "text" else format_record("x", **fields)
    assert "\\" in line
    assert line.isprintable()


def test_prompt_with_line_breaks_stays_one_line() -> None:
    assert len(format_record("asked", prompt="one\ntwo").splitlines()) == 1


def test_traceback_follows_the_line_and_is_harmless() -> None:
    try:
        raise ValueError("bad\x1b[2J")
    except ValueError as error:
        record = logging.LogRecord("m", logging.ERROR, __file__, 1, "it broke", (), None)
        record.exc_info = (type(error), error, error.__traceback__)
    text = ConsoleFormatter(colours=False).format(record)
    assert "it broke\n" in text
    assert "ValueError: bad\\x1b[2J" in text
    assert "\x1b" not in text


def test_colours_are_added_and_nothing_else_changes() -> None:
    fields: dict[str, Any] = {
        "state": "FAILED",
        "error": "no luck",
        "request_id": "r",
        "worker": "w",
    }
    plain = format_record("job failed", logging.ERROR, **fields)
    coloured = format_record("job failed", logging.ERROR, colours=True, **fields)
    assert coloured != plain
    assert ANSI.sub("", coloured)[8:] == plain[8:]


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
    ],
)
def test_no_color_is_honoured(
    environment: Mapping[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert should_use_colours(is_terminal=True) is coloured
    assert not should_use_colours(is_terminal=False)


def test_bound_fields_are_used_and_a_records_own_win() -> None:
    with structlog.contextvars.bound_contextvars(job_id="of-the-task"):
        assert "of-the-task" in format_record("x")
        assert "of-the-task" not in format_record("job j-2 COMPLETED", job_id="j-2")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 ms"), (3, "3 ms"), (1.26, "1.3 ms"), (312.4, "312 ms"), (1204, "1.20 s")],
)
def test_duration_is_written_as_people_do(milliseconds: float, text: str) -> None:
    assert format_duration(milliseconds) == text
