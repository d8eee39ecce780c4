"""The parts of an input: their lines, their names, and which one a process has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch.input.scan import scan_input
from batch.input.shard import (
    Shard,
    ShardError,
    ShardSource,
    check_output,
    find_shard,
    find_shard_of_line,
    parse_shard,
)


@given(lines=st.integers(0, 2_000), count=st.integers(1, 50))
def test_shards_have_each_line_once_and_about_as_many(lines: int, count: int) -> None:
    bounds = [Shard(index, count).bounds(lines) for index in range(count)]
    assert [line for start, end in bounds for line in range(start, end)] == list(range(lines))
    sizes = [end - start for start, end in bounds]
    assert max(sizes) - min(sizes) <= 1
    for index, (start, end) in enumerate(bounds):
        assert {find_shard_of_line(line, lines, count) for line in range(start, end)} <= {index}


@pytest.mark.parametrize(
    ("address", "renamed"),
    [
        ("answers.jsonl", "answers-00012.jsonl"),
        ("out/answers", "out/answers-00012"),
        ("s3://bucket/a/answers.jsonl", "s3://bucket/a/answers-00012.jsonl"),
        ("/data/a.b.jsonl", "/data/a.b-00012.jsonl"),
    ],
)
def test_output_of_a_shard_has_its_number(address: str, renamed: str) -> None:
    assert Shard(12, 16).rename(address) == renamed


def test_source_reads_the_lines_of_its_part(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{number}\n" for number in range(10)) + "\n\n")
    sources = [ShardSource(path, 100, Shard(index, 3)) for index in range(3)]
    parts = [[int(line) for line in source.lines()] for source in sources]
    assert parts == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert [source.lines_before for source in sources] == [0, 3, 6]
    assert [list(map(int, source.lines())) for source in sources] == parts


def test_problems_have_the_number_of_the_line_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("{}\n" * 10)
    summary = scan_input(ShardSource(path, 100, Shard(1, 3)), lambda line: None, 2)
    assert [number for number, _ in summary.problems] == [4, 5, 6]
    assert summary.problems[2][1] == "the file has 3 lines, at most 2 are allowed"


def test_part_of_a_short_file_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("{}\n")
    summary = scan_input(ShardSource(path, 100, Shard(0, 3)), lambda line: None, 2)
    assert (summary.lines, summary.problem_count) == (0, 0)


@pytest.mark.parametrize(
    "name", ["JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_ID", "SKYPILOT_NODE_RANK"]
)
def test_index_is_that_of_the_scheduler(name: str) -> None:
    assert find_shard(8, {name: "3", "OTHER": "5"}) == Shard(3, 8)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "--shards needs the part's index in one of JOB_COMPLETION_INDEX, "),
        ({"SLURM_ARRAY_TASK_ID": ""}, "--shards needs the part's index in one of "),
        ({"SLURM_ARRAY_TASK_ID": "x"}, "SLURM_ARRAY_TASK_ID must be a whole number from 0, got"),
        ({"SLURM_ARRAY_TASK_ID": "-1"}, "SLURM_ARRAY_TASK_ID must be a whole number from 0, got"),
        (
            {"SLURM_ARRAY_TASK_ID": "8"},
            "SLURM_ARRAY_TASK_ID: the index of 8 shards is from 0 to 7, got 8",
        ),
        (
            {"SLURM_ARRAY_TASK_ID": "1", "JOB_COMPLETION_INDEX": "2"},
            "JOB_COMPLETION_INDEX=2 and SLURM_ARRAY_TASK_ID=1 are different indexes: name the pa",
        ),
    ],
)
def test_index_that_is_not_known_is_refused(environment: dict[str, str], reason: str) -> None:
    with pytest.raises(ShardError) as caught:
        find_shard(8, environment)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("3", "--shard must be I/N, for example 0/8, got "),
        ("8/8", "--shard: the index of 8 shards is from 0 to 7, got 8"),
        ("0/0", "there can be 1 to 100,000 shards, got 0"),
    ],
)
def test_option_that_names_no_part_is_refused(text: str, reason: str) -> None:
    assert parse_shard("3/8") == Shard(3, 8)
    with pytest.raises(ShardError) as caught:
        parse_shard(text)
    assert str(caught.value).startswith(reason)


def test_standard_output_is_no_output_of_a_shard() -> None:
    with pytest.raises(ShardError, match="--output must be a file"):
        check_output("-")
