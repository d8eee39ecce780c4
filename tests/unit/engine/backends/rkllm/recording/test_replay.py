"""Reading recordings, for the replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fake_rkllm.replay import build_script, read_recording, read_recordings

HEADER = {"format": "rkllm-recording", "version": 1, "texts": False}
INIT: list[Any] = [["call", 0, 1, "init", {"max_context_len": 64}], ["return", 1000, 1, 0]]
RUN = ["call", 2000, 2, "run", {"run": 1, "mode": 0, "prompts": [{"bytes": 2}]}]
TOKEN = ["result", 3000, 1, 0, 1, [[None, 2]]]
ABORT: list[Any] = [["call", 4000, 3, "abort"], ["return", 4100, 3, 0]]


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"format": "other"}, "is not a recording"),
        ([], "is not a recording"),
        ({**HEADER, "version": 2}, "version must be 1, got 2"),
    ],
)
def test_read_recording_refuses_other_files(tmp_path: Path, header: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_recording(write(tmp_path / "board.jsonl", header))


def test_read_recording_names_a_damaged_line(tmp_path: Path) -> None:
    path = write(tmp_path / "board.jsonl", HEADER, *INIT)
    path.write_text(path.read_text() + '["call",')
    with pytest.raises(ValueError, match=r"board\.jsonl:4: "):
        read_recording(path)


def test_read_recordings_returns_those_of_following_processes(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("board.jsonl", "board.2.jsonl", "board.4.jsonl")]
    for path in paths:
        write(path, HEADER, *INIT)
    assert len(read_recordings(paths[0])) == 2


def test_unfinished_run_is_a_crash(tmp_path: Path) -> None:
    recording = read_recording(write(tmp_path / "board.jsonl", HEADER, *INIT, RUN, TOKEN))
    assert [(run.crashed, run.hung) for run in recording.runs] == [(True, False)]
    assert "  ends at=1000 crashes\n" in build_script([recording])


def test_unfinished_run_that_was_aborted_long_before_the_end_has_hung(tmp_path: Path) -> None:
    later = [["call", 504_000, 4, "abort"], ["return", 504_100, 4, 0]]
    path = write(tmp_path / "board.jsonl", HEADER, *INIT, RUN, TOKEN, *ABORT, *later)
    recording = read_recording(path)
    assert [(run.crashed, run.hung) for run in recording.runs] == [(False, True)]
    assert "  ends at=1000 hangs\n" in build_script([recording])


def test_unfinished_run_of_a_full_file_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "board.jsonl", HEADER, *INIT, RUN, TOKEN, ["full"])
    assert read_recording(path).runs == []


def test_unfinished_init_is_a_crash(tmp_path: Path) -> None:
    recording = read_recording(write(tmp_path / "board.jsonl", HEADER, INIT[0]))
    assert build_script([recording]).split() == ["load", "process=1", "init=1", "crashes"]


def test_clear_that_does_not_work_is_replayed(tmp_path: Path) -> None:
    clear = [["call", 5000, 5, "clear_kv_cache", {"keep_system_prompt": 0}]]
    size = [["call", 6000, 6, "get_kv_cache_size"], ["return", 6100, 6, 0, {"sizes": [12]}]]
    lies = write(tmp_path / "a.jsonl", HEADER, *INIT, *clear, ["return", 5100, 5, 0], *size)
    assert "clear lies\n" in build_script([read_recording(lies)])
    fails = write(tmp_path / "b.jsonl", HEADER, *INIT, *clear, ["return", 5100, 5, -1], *size)
    assert "clear fails\n" in build_script([read_recording(fails)])
