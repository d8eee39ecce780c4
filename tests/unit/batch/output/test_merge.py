"""The outputs of all parts as one, in the order of the input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch.output.merge import DuplicateIds, MergedOutput


def write(path: Path, *ids: str, key: str = "custom_id") -> Path:
    path.write_text("".join(json.dumps({key: each, "n": each}) + "\n" for each in ids))
    return path


def ids_of(merged: MergedOutput, *, ok: bool) -> list[str]:
    return [json.loads(line)["n"] for line in merged.answers(ok=ok)]


def test_answers_are_in_the_order_of_the_input(tmp_path: Path) -> None:
    merged = MergedOutput(["a", "b", "c", "d"])
    merged.add_file(write(tmp_path / "1", "d", "b"), "1", ok=True)
    merged.add_file(write(tmp_path / "2", "a"), "2", ok=True)
    merged.add_file(write(tmp_path / "3", "c", key="id"), "3", ok=False)
    assert merged.problems.count == 0
    assert list(merged.missing()) == []
    assert (merged.lines, merged.failed) == (4, 1)
    assert ids_of(merged, ok=True) == ["a", "b", "d"]
    assert ids_of(merged, ok=False) == ["c"]


def test_lines_without_an_answer_are_missing(tmp_path: Path) -> None:
    merged = MergedOutput(["a", "b", "c"])
    merged.add_file(write(tmp_path / "1", "b"), "1", ok=True)
    assert list(merged.missing()) == [0, 2]


def test_wrong_answers_are_named_by_their_file_and_line(tmp_path: Path) -> None:
    merged = MergedOutput(["a", "b"])
    path = write(tmp_path / "1", "a", "x", "a")
    path.write_text(path.read_text() + "{broken\n[1]\n{}\n")
    merged.add_file(path, "part", ok=True)
    assert merged.problems.listed == [
        "part, line 2: its id is on no line of the input",
        "part, line 3: line 1 of the input has an answer already",
        *(f"part, line {number}: it is not an answer of a batch" for number in (4, 5, 6)),
    ]


def test_many_problems_are_only_counted(tmp_path: Path) -> None:
    merged = MergedOutput([])
    merged.add_file(write(tmp_path / "1", *map(str, range(100))), "part", ok=True)
    assert (merged.problems.count, len(merged.problems.listed)) == (100, 20)


def test_input_with_an_id_twice_is_refused() -> None:
    with pytest.raises(DuplicateIds, match="line 3: custom_id is the same as on line 1"):
        MergedOutput(["a", "b", "a"])


@given(st.permutations(range(12)), st.integers(0, 12))
def test_each_line_is_there_once_whatever_the_order(order: list[int], cut: int) -> None:
    merged = MergedOutput([str(number) for number in range(12)])
    merged._paths.append(Path("part"))
    lines = [json.dumps({"custom_id": str(each)}).encode() + b"\n" for each in order]
    problems = [merged._add_line(line, 0, ok=bool(index < cut)) for index, line in enumerate(lines)]
    assert problems == [None] * 12
    assert list(merged.missing()) == []
    assert merged.failed == 12 - cut
