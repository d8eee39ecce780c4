"""The difference of two JSON values: readable, bounded, and safe for a terminal."""

from __future__ import annotations

from emulator.handler_tests.json_diff import MAX_LINE_CHARS, MAX_LINES, diff_json


def test_order_of_keys_is_no_difference() -> None:
    lines = diff_json({"b": 1, "a": [1, 2]}, {"a": [1, 3], "b": 1})
    assert [line for line in lines if line[0] in "+-"] == [
        "--- expected",
        "+++ actual",
        "-    2",
        "+    3",
    ]


def test_long_diff_is_cut() -> None:
    lines = diff_json(list(range(500)), list(range(1_000, 1_500)))
    assert len(lines) == MAX_LINES + 1
    assert lines[-1].startswith("… (")
    assert lines[-1].endswith(" more lines)")


def test_long_lines_are_cut() -> None:
    line = diff_json("x" * 5_000, "y")[3]
    assert len(line) < MAX_LINE_CHARS + 40
    assert line.endswith("(4,803 more characters)")


def test_difference_after_the_compared_lines_is_named() -> None:
    assert diff_json([0] * 5_000 + [1], [0] * 5_000 + [2]) == [
        "(they differ after line 2,000 of the formatted JSON)"
    ]


def test_controls_are_escaped() -> None:
    assert "\x1b" not in "".join(diff_json("a\u009b31m\x1b[31m", "\u202eb"))
    assert "\u202e" not in "".join(diff_json("a", "\u202eb"))
    assert any("é" in line for line in diff_json("é", "e"))
