"""Print the verdicts as a table, and write them as JSON and JUnit XML."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from common.setting_error import SettingError
from common.terminal_text import escape_controls, escape_lines
from emulator.handler_tests.junit import JUnitCase
from emulator.torture.run import ShapeResult, Subject
from emulator.torture.shape import Shape, list_all_shapes
from emulator.torture.verdict import Verdict

_VERSION = 1
_MAX_OUTPUT_CHARS = 300


class VerdictReport:
    """Prints each wrong verdict when its run ends, and the counts at the end.

    On a terminal, `errors` has a bar with the shape that runs.
    """

    def __init__(self, out: TextIO, errors: TextIO, count: int) -> None:
        self._out = out
        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=Console(file=errors),
            transient=True,
            disable=not errors.isatty(),
        )
        self._task = self._progress.add_task("", total=count)

    @contextmanager
    def showing_progress(self) -> Iterator[None]:
        """Show the bar while the context is open."""
        with self._progress:
            yield

    def start(self, shape: Shape) -> None:
        """Show that a shape runs."""
        self._progress.update(self._task, description=shape.name)

    def add(self, result: ShapeResult) -> None:
        """Count a shape whose run has ended."""
        self._progress.advance(self._task)

    def print_results(self, subject: Subject, results: Sequence[ShapeResult]) -> None:
        """Print the table: all shapes with their verdicts, then why the wrong ones are wrong."""
        width = max(len(each.shape.name) for each in results)
        self._print(f"{'SHAPE':{width}}  VERDICT")
        for each in results:
            self._print(f"{each.shape.name:{width}}  {each.judgement.verdict}")
        wrong = [each for each in results if not each.is_right]
        for each in wrong:
            self._print(f"\n{format_wrong(each)}")
        counts = Counter(each.judgement.verdict for each in results)
        parts = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
        self._print(f"\n{subject.api.description}: {', '.join(parts)}")

    def _print(self, text: str) -> None:
        self._out.write(f"{text}\n")


def print_shapes(out: TextIO) -> None:
    """Print all shapes with their reason, their rule and the APIs that they concern."""
    for name, reason, rule, apis in list_all_shapes():
        out.write(f"{name}\n  {reason}\n  {rule}\n  {', '.join(apis)}\n")


def format_wrong(result: ShapeResult) -> str:
    """Return a wrong verdict in lines: the shape, its rule, and what the client did."""
    shape, run = result.shape, result.run
    lines = [
        f"{shape.name}: {result.judgement.verdict}",
        f"  {shape.reason}",
        f"  The client {shape.expected.description}: {result.judgement.detail}.",
        f"  {shape.rule}",
        f"  Printed: {_shorten(run.printed)}",
    ]
    if run.errors.strip():
        lines.append(f"  Last error line: {_shorten(run.errors.strip().splitlines()[-1])}")
    if any(shape.faults):
        lines.append(f"  By hand: x-fault: {' | '.join(each or 'none' for each in shape.faults)}")
    return "\n".join(lines)


def junit_case(result: ShapeResult) -> JUnitCase:
    """Return a shape with its verdict for a JUnit file."""
    verdict = result.judgement.verdict
    failure = None if result.is_right else f"{verdict}: {result.judgement.detail}"
    return JUnitCase(
        name=result.shape.name,
        duration_s=result.run.duration_s,
        failure=failure,
        failure_type=verdict.title().replace(" ", ""),
        details="" if result.is_right else format_wrong(result),
    )


def check_json_file(path: Path) -> None:
    """Raise SettingError if no file can be created at the path: sooner than after all runs."""
    if not path.parent.is_dir():
        raise SettingError(f"--json: there is no folder {path.parent}")
    if path.is_dir():
        raise SettingError(f"--json: {path} is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SettingError(f"--json: {path} cannot be written")


def write_json_file(path: Path, subject: Subject, results: Sequence[ShapeResult]) -> None:
    """Write the verdicts as JSON. Raises SettingError if the disk refuses it."""
    try:
        path.write_bytes(orjson.dumps(build_json(subject, results), option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise SettingError(f"--json: {path} cannot be written: {error.strerror}") from None


def build_json(subject: Subject, results: Sequence[ShapeResult]) -> dict[str, Any]:
    """Return the verdicts as the object of the JSON file."""
    return {
        "version": _VERSION,
        "client": subject.command.text,
        "api": subject.api,
        "is_call": subject.is_call,
        "wrong": sum(not each.is_right for each in results),
        "results": [
            {
                "shape": each.shape.name,
                "faults": list(each.shape.faults),
                "expected": each.shape.expected,
                "verdict": each.judgement.verdict,
                "detail": each.judgement.detail,
                "exit_code": each.run.exit_code,
                "requests": each.run.requests,
                "printed": each.run.printed[:_MAX_OUTPUT_CHARS],
                "duration_s": round(each.run.duration_s, 3),
            }
            for each in results
        ],
    }


def _shorten(text: str) -> str:
    excerpt = text if len(text) <= _MAX_OUTPUT_CHARS else f"{text[:_MAX_OUTPUT_CHARS]}…"
    return escape_lines(escape_controls(repr(excerpt)))
