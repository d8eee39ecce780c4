from __future__ import annotations

import pytest

from emulator.autoscaling.line_splitter import LineSplitter


def split(*blocks: bytes, max_line_bytes: int = 100) -> list[str]:
    splitter = LineSplitter(max_line_bytes)
    return [line for block in blocks for line in splitter.feed(block)] + splitter.finish()


@pytest.mark.parametrize(
    ("printed", "lines"),
    [
        (b"", []),
        (b"one", ["one"]),
        (b"one\n", ["one"]),
        (b"one\n\ntwo\n", ["one", "", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\r\r\n", ["one"]),
        (b"  indented\t\n", ["  indented\t"]),
        # A progress bar overwrites the line with each state.
        (b"10%\r20%\rdone\n", ["done"]),
        (b"10%\r20%\r", ["20%"]),
        (b"\rstarts with it\n", ["starts with it"]),
        ("gr\u00fc\u00dfe \U0001f600\n".encode(), ["gr\u00fc\u00dfe \U0001f600"]),
        (b"\xff\xfe\x00binary\n", ["\ufffd\ufffd\x00binary"]),
        (b"x" * 150 + b"\nnext\n", ["x" * 100 + " … (50 more bytes)", "next"]),
        (b"x" * 150 + b"\rshort\n", ["short"]),
        (b"x" * 100 + b"\n", ["x" * 100]),
    ],
)
def test_lines_are_split_like_in_a_terminal(printed: bytes, lines: list[str]) -> None:
    assert split(printed) == lines
    assert split(*(printed[i : i + 1] for i in range(len(printed)))) == lines


def test_line_of_a_megabyte_keeps_its_start_only() -> None:
    splitter = LineSplitter()
    for _ in range(1_000):
        assert splitter.feed(b"x" * 1_000) == []
    assert len(splitter._line) == 65_536
    (line,) = splitter.feed(b"\n")
    assert line.startswith("xxx")
    assert line.endswith(" … (934,464 more bytes)")
