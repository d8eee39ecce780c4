"""scan_input: all problems of all lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batch.input.line import BadLine, Line
from batch.input.scan import MAX_LISTED_PROBLEMS, InputSummary, compute_digest, scan_input
from batch.input.source import InputError, LineSource

Write = Callable[..., LineSource]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def source(*lines: bytes, max_line_bytes: int = 1_000) -> LineSource:
        path = tmp_path / "in.jsonl"
        path.write_bytes(b"\n".join(lines))
        return LineSource(path, max_line_bytes)

    return source


def call(custom_id: str, url: str = "/v1/completions", **body: Any) -> bytes:
    line = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(line).encode()


def accept(_line: Line) -> None:
    return None


def scan(source: LineSource, max_lines: int = 100) -> InputSummary:
    return scan_input(source, accept, max_lines)


def test_scan_of_a_valid_input(write: Write) -> None:
    source = write(call("a"), call("b"), b"")
    summary = scan(source)
    assert (summary.lines, summary.kind, summary.problem_count) == (2, "/v1/completions", 0)
    assert (
        summary.digest
        == compute_digest(source)
        == hashlib.sha256(source.path.read_bytes()).hexdigest()
    )


@pytest.mark.parametrize("end", [b"\n", b"\n\n\n", b"\r\n \t\r\n", b"\n\n   "])
def test_blank_lines_at_the_end_are_ignored(end: bytes, write: Write) -> None:
    source = write(call("a"), call("b") + end)
    first, second = scan(source), scan(source)
    assert (first.lines, first.problem_count) == (second.lines, second.problem_count) == (2, 0)
    assert first.digest == second.digest == compute_digest(source)


def test_blank_lines_between_others_are_problems(write: Write) -> None:
    summary = scan(write(b"", call("a"), b"", b" ", call("b"), b"", b""))
    assert summary.lines == 5
    assert summary.problems == [(number, "the line is empty") for number in (1, 3, 4)]


def test_file_of_nothing_but_blank_lines_uses_little_memory(write: Write) -> None:
    summary = scan(write(*[b""] * 5_000), max_lines=10_000)
    # Up to a thousand trailing blank lines may be part of the end; the others count as lines.
    assert summary.lines >= 3_999
    assert scan(write(b"", b"")).lines == 0


def test_every_problem_has_its_line(write: Write) -> None:
    def check(line: Line) -> None:
        if line.body.get("bad"):
            raise BadLine("bad is not allowed")

    source = write(
        call("a"),
        b"",
        call("b", url="/v1/chat/completions"),
        b"{",
        call("c", bad=True),
        call("a"),
        call("d", filler="x" * 1_000),
        call("a"),
        call("e"),
    )
    summary = scan_input(source, check, 100)
    assert summary.problem_count == 7
    assert summary.problems == [
        (2, "the line is empty"),
        (3, "the line is for /v1/chat/completions, the lines before it are for /v1/completions"),
        (4, summary.problems[2][1]),
        (5, "bad is not allowed"),
        (6, "custom_id is the same as on line 1"),
        (7, "the line is longer than 1,000 bytes (MAX_BODY_MB)"),
        (8, "custom_id is the same as on line 1"),
    ]
    assert summary.problems[2][1].startswith("the line is not JSON: ")


def test_jobs_and_calls_do_not_mix(write: Write) -> None:
    summary = scan(write(b'{"input": {}}', call("a")))
    assert summary.problems == [
        (2, "the line is for /v1/completions, the lines before it are for job inputs")
    ]


def test_an_empty_file(write: Write) -> None:
    summary = scan(write())
    assert summary.problem_count == 1
    assert summary.problems[0][1].endswith("in.jsonl is empty")


def test_excess_of_lines_is_one_problem(write: Write) -> None:
    summary = scan(write(*(call(str(number)) for number in range(7))), max_lines=5)
    assert summary.problems == [(6, "the file has 7 lines, at most 5 are allowed")]


def test_only_the_first_problems_are_listed(write: Write) -> None:
    lines = [call("same")] * 200 + [b"{"] * 200
    summary = scan(write(*lines), max_lines=1_000)
    assert summary.problem_count == 199 + 200
    assert [number for number, _ in summary.problems] == list(range(2, 2 + MAX_LISTED_PROBLEMS))


def test_source_truncates_a_long_line(write: Write) -> None:
    source = write(b"x" * 10_000, call("a"), max_line_bytes=100)
    assert [len(line) for line in source.lines()] == [101, len(call("a"))]


def test_line_of_exactly_the_maximum_length_is_accepted(write: Write) -> None:
    exact = call("a", filler="x" * 50)
    source = write(exact, call("b"), max_line_bytes=len(exact) + 1)
    assert [*source.lines()] == [exact + b"\n", call("b")]
    assert scan(source).problem_count == 0


def test_unreadable_file_raises_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        list(LineSource(tmp_path, 10).lines())
