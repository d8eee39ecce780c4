"""Print the results of tests as a table, and the details of the failures."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TextIO

from common.terminal_text import escape_controls, escape_lines
from emulator.handler_tests.junit import JUnitCase
from emulator.handler_tests.runner import HandlerTestResult
from emulator.tests_file.reader import HandlerTest

_MAX_NAME_CHARS = 60
_MAX_ERROR_CHARS = 4_000
_MAX_OUTPUT_LINES = 20
_REFRESH_INTERVAL_S = 0.2
_CLEAR_LINE = "\r\x1b[K"


class ResultReport:
    """Prints to `out`; on a terminal, `errors` has a line with the running test.

    A row of the table is printed as soon as its test has ended.
    """

    def __init__(self, out: TextIO, errors: TextIO, tests: Sequence[HandlerTest]) -> None:
        self._out = out
        self._errors = errors
        self._count = len(tests)
        self._width = max(len("NAME"), *(len(_format_name(test)) for test in tests))
        self._results: list[HandlerTestResult] = []
        self._started_at = time.monotonic()
        self._running: HandlerTest | None = None
        self._running_since = self._started_at

    def print_header(self, title: str) -> None:
        """Print the title and the head of the table."""
        self._print(f"{title}\n\n{'NAME':{self._width}}  RESULT  STATUS        TIME")

    def start(self, test: HandlerTest) -> None:
        """Show that a test runs."""
        self._running, self._running_since = test, time.monotonic()

    def add(self, result: HandlerTestResult) -> None:
        """Print the row of a test that has ended."""
        self._results.append(result)
        self._running = None
        verdict = "PASS" if result.has_passed else "FAIL"
        time_s = f"{result.duration_s:.2f} s" if result.status else "-"
        name = _format_name(result.test)
        self._print(f"{name:{self._width}}  {verdict}    {result.status or '-':9}  {time_s:>7}")

    def print_summary(self) -> None:
        """Print the details of the failures, and how many tests have passed and failed."""
        failed = [each for each in self._results if not each.has_passed]
        for result in failed:
            if not result.is_start_failure:
                self._print(f"\nFAIL {_format_name(result.test)}\n{format_failure(result)}")
        if start_failure := next((each for each in failed if each.is_start_failure), None):
            # All tests after it fail for the same reason.
            self._print(f"\n{format_failure(start_failure)}")
        passed = len(self._results) - len(failed)
        duration_s = time.monotonic() - self._started_at
        self._print(f"\n{passed} passed, {len(failed)} failed in {duration_s:.1f} s")

    @asynccontextmanager
    async def showing_progress(self) -> AsyncIterator[None]:
        """Keep a line about the running test on a terminal while the context is open."""
        if not self._errors.isatty():
            yield
            return
        display = asyncio.create_task(self._refresh())
        try:
            yield
        finally:
            display.cancel()
            await asyncio.wait([display])
            self._errors.write(_CLEAR_LINE)
            self._errors.flush()

    async def _refresh(self) -> None:
        while True:
            if self._running is not None:
                elapsed_s = time.monotonic() - self._running_since
                number = len(self._results) + 1
                name = _format_name(self._running)
                line = f"{number} of {self._count}: {name}, {elapsed_s:.0f} s"
                # A line that wraps could not be cleared.
                width = shutil.get_terminal_size().columns - 1
                self._errors.write(f"{_CLEAR_LINE}{line[:width]}")
                self._errors.flush()
            await asyncio.sleep(_REFRESH_INTERVAL_S)

    def _print(self, text: str) -> None:
        if self._errors.isatty():
            self._errors.write(_CLEAR_LINE)
            self._errors.flush()
        self._out.write(f"{text}\n")
        self._out.flush()


def junit_case(result: HandlerTestResult) -> JUnitCase:
    """Return a test with its result for a JUnit file."""
    return JUnitCase(
        name=result.test.name,
        duration_s=result.duration_s,
        failure=result.failure,
        failure_type="HandlerNotStarted" if result.is_start_failure else "TestFailed",
        details="" if result.has_passed else format_failure(result),
    )


def format_failure(result: HandlerTestResult) -> str:
    """Return why a test has failed: the sentence, the difference, the error and the output."""
    parts = [escape_lines(result.failure or "")]
    parts += result.diff
    if result.error and result.error != result.failure:
        parts += ["the job's error:", *_indent(_shorten(result.error).split("\n"))]
    if result.output_lines:
        omitted = len(result.output_lines) - _MAX_OUTPUT_LINES
        parts.append(
            f"the last {_MAX_OUTPUT_LINES} lines that the worker printed:"
            if omitted > 0
            else "the worker printed:"
        )
        parts += _indent(result.output_lines[-_MAX_OUTPUT_LINES:])
    return "\n".join(parts)


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"  {escape_lines(line)}" for line in lines]


def _shorten(text: str) -> str:
    # The end of a traceback has the exception.
    return text if len(text) <= _MAX_ERROR_CHARS else f"…{text[-_MAX_ERROR_CHARS:]}"


def _format_name(test: HandlerTest) -> str:
    name = escape_controls(test.name)
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 1]}…"
