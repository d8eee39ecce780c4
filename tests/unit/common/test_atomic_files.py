"""Files that are replaced in one step."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.atomic_files import replace_file


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_replace_file_writes_all_pieces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old and longer")
    replace_file(path, [b"a", b"", b"b"])
    assert path.read_bytes() == b"ab"
    assert os.listdir(tmp_path) == ["file"]


def test_replace_file_keeps_the_old_content_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        replace_file(path, pieces())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_replace_file_overwrites_the_remains_of_a_killed_process(tmp_path: Path) -> None:
    (tmp_path / "file.new").write_bytes(b"a long unfinished content")
    replace_file(tmp_path / "file", [b"new"], 0o600)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert mode_of(tmp_path / "file") == 0o600


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o640), (0o600, 0o600), (0o644, 0o644)])
def test_replace_file_sets_the_mode_whatever_the_umask(
    tmp_path: Path, mode: int | None, expected: int
) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "file", [b"x"], mode)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "file") == expected


def test_replace_file_does_not_follow_a_link_at_its_unfinished_name(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"kept")
    (tmp_path / "file.new").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"file\.new"):
        replace_file(tmp_path / "file", [b"x"], 0o600)
    assert (tmp_path / "other").read_bytes() == b"kept"
