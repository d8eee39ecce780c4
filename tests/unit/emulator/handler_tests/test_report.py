"""The printed table, the details of failures, and the progress line."""

from __future__ import annotations

import io
from typing import Any

from emulator.handler_tests.report import ResultReport, format_failure
from emulator.handler_tests.runner import HandlerTestResult
from emulator.tests_file.reader import HandlerTest
from tests.waiting import wait_until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def result(name: str, **fields: Any) -> HandlerTestResult:
    return HandlerTestResult(test=HandlerTest(name=name, input={}), **fields)


def printed(*results: HandlerTestResult) -> list[str]:
    out = io.StringIO()
    report = ResultReport(out, io.StringIO(), [each.test for each in results])
    report.print_header("Testing handler.py")
    for each in results:
        report.start(each.test)
        report.add(each)
    report.print_summary()
    return out.getvalue().split("\n")


def test_table_and_details() -> None:
    lines = printed(
        result("first", status="COMPLETED", duration_s=0.123),
        result(
            "a longer name",
            status="FAILED",
            duration_s=12,
            failure="the status is FAILED, expected COMPLETED",
            diff=["-1", "+2"],
            error="Traceback:\nno",
            output_lines=["hello"],
        ),
    )
    assert lines[:5] == [
        "Testing handler.py",
        "",
        "NAME           RESULT  STATUS        TIME",
        "first          PASS    COMPLETED   0.12 s",
        "a longer name  FAIL    FAILED     12.00 s",
    ]
    assert lines[5:-2] == [
        "",
        "FAIL a longer name",
        "the status is FAILED, expected COMPLETED",
        "-1",
        "+2",
        "the job's error:",
        "  Traceback:",
        "  no",
        "the worker printed:",
        "  hello",
        "",
    ]
    assert lines[-2].startswith("1 passed, 1 failed in ")


def test_equal_failures_of_several_workers_are_printed_as_one() -> None:
    failure = {"failure": "it did not start", "is_start_failure": True, "output_lines": ["why"]}
    lines = printed(*(result(name, **failure) for name in "abc"))
    assert lines[3] == "a     FAIL    -                -"
    assert lines.count("it did not start") == lines.count("  why") == 1


def test_names_and_output_cannot_control_the_terminal() -> None:
    name = "\x1b[2Jn" + "x" * 100
    lines = printed(
        result(name, status="FAILED", failure="\x1b", error="\x1b", output_lines=["\x1b", "\u202e"])
    )
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "x…  FAIL" in lines[3]


def test_error_and_output_are_bounded() -> None:
    text = format_failure(
        result("a", failure="no", error="x" * 9_999, output_lines=[str(n) for n in range(100)])
    )
    assert len(text) < 5_000
    assert "the last 20 lines that the worker printed:\n  80\n" in text
    assert text.endswith("  99")


async def test_progress_is_a_line_of_a_terminal_that_is_removed() -> None:
    out, errors = io.StringIO(), Terminal()
    test = HandlerTest(name="slow", input={})
    report = ResultReport(out, errors, [test])
    async with report.showing_progress():
        report.start(test)
        await wait_until(lambda: "1 of 1: slow, 0 s" in errors.getvalue())
    assert errors.getvalue().endswith("\r\x1b[K")
    assert out.getvalue() == ""


async def test_nothing_is_written_where_stderr_is_no_terminal() -> None:
    errors = io.StringIO()
    test = HandlerTest(name="slow", input={})
    report = ResultReport(io.StringIO(), errors, [test])
    async with report.showing_progress():
        report.start(test)
    assert errors.getvalue() == ""
