"""The file of a recording: its header, its name, its limit and its errors."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from engine.backends.rkllm.recording.recording_file import RecordingFile, find_write_error
from engine.errors import ModelLoadFailed


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_recording_file_starts_with_a_header(tmp_path: Path) -> None:
    file = RecordingFile(tmp_path / "board.jsonl", {"texts": False})
    assert read(file.path) == [{"format": "rkllm-recording", "version": 1, "texts": False}]


def test_recording_file_writes_each_line_immediately(tmp_path: Path) -> None:
    file = RecordingFile(tmp_path / "board.jsonl", {})
    file.write('["call",1,1,"init"]')
    assert read(file.path)[1:] == [["call", 1, 1, "init"]]


def test_recording_file_does_not_overwrite_another(tmp_path: Path) -> None:
    path = tmp_path / "board.jsonl"
    files = [RecordingFile(path, {"number": number}) for number in range(3)]
    assert [file.path.name for file in files] == ["board.jsonl", "board.2.jsonl", "board.3.jsonl"]
    assert [read(file.path)[0]["number"] for file in files] == [0, 1, 2]


def test_recording_file_is_private(tmp_path: Path) -> None:
    path = RecordingFile(tmp_path / "board.jsonl", {}).path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_recording_file_ends_at_its_limit_with_the_event_full(tmp_path: Path) -> None:
    file = RecordingFile(tmp_path / "board.jsonl", {}, max_bytes=100)
    for _ in range(10):
        file.write('["call",1,1,"init"]')
    lines = read(file.path)
    assert lines[-1] == ["full"]
    assert 2 < len(lines) < 6
    assert file.path.stat().st_size < 110


def test_closed_recording_file_drops_lines(tmp_path: Path) -> None:
    file = RecordingFile(tmp_path / "board.jsonl", {})
    file.close()
    file.write("[]")
    file.close()
    assert len(read(file.path)) == 1


def test_failed_write_ends_the_recording_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = RecordingFile(tmp_path / "board.jsonl", {})

    def write(file: int, data: bytes) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "write", write)
    file.write("[]")
    file.write("[]")
    expected = f"RKLLM_RECORD: {file.path} ends here: No space left on device"
    assert [record.getMessage() for record in caplog.records] == [expected]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing/board.jsonl", "there is no folder"), ("", "it is a folder")],
)
def test_unwritable_path_is_one_sentence(tmp_path: Path, name: str, reason: str) -> None:
    path = tmp_path / name
    assert reason in (find_write_error(path) or "")
    with pytest.raises(ModelLoadFailed, match=f"^RKLLM_RECORD: .* cannot be written: {reason}"):
        RecordingFile(path, {})


def test_failed_creation_is_one_sentence(tmp_path: Path) -> None:
    name = "x" * 300
    with pytest.raises(ModelLoadFailed, match=r"^RKLLM_RECORD: .*: File name too long$"):
        RecordingFile(tmp_path / name, {})
