"""Temporary folders, and the removal of the folders of killed processes."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from common.temporary_folders import ScratchFolder, remove_abandoned
from tests.integration.emulator.processes import ROOT

HOLD = """
import sys
from common.temporary_folders import ScratchFolder
with ScratchFolder() as folder:
    (folder.path / "prompt.txt").write_text("private")
    print(folder.name, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def holder(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has a scratch folder; return it and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    process.send_signal(number)
    process.communicate(timeout=30)


def test_scratch_folder_is_removed_when_it_is_closed(temporary: Path) -> None:
    with ScratchFolder() as folder:
        (folder.path / "x").touch()
        assert folder.path.parent == temporary
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_scratch_folder_is_private_with_any_umask(umask: int) -> None:
    before = os.umask(umask)
    try:
        with ScratchFolder() as folder:
            assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_scratch_folder_of_a_living_process_is_kept(temporary: Path) -> None:
    process, folder = holder(temporary)
    try:
        remove_abandoned()
        assert (folder / "prompt.txt").exists()
    finally:
        end(process)


def test_scratch_folder_of_a_killed_process_is_removed_by_the_next(temporary: Path) -> None:
    process, folder = holder(temporary)
    end(process)
    assert folder.exists()
    with ScratchFolder():
        assert not folder.exists()


def test_other_folders_are_not_removed(temporary: Path, tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    others = [
        temporary / name
        for name in (
            # Names of earlier versions; their processes may be alive in another container.
            "worker-rkllm-999999-abcdefgh",
            "worker-rkllm-tmp-of-somebody",
            "worker-rkllm-tmp-0123456g",
            "worker-rkllm-tmp-0123456789",
        )
    ]
    for folder in (documents, *others):
        (folder / "x").mkdir(parents=True)
    (temporary / "worker-rkllm-tmp-01234567").symlink_to(documents)
    (temporary / "worker-rkllm-tmp-89abcdef").write_text("a file")
    remove_abandoned()
    assert all((folder / "x").exists() for folder in (documents, *others))
    assert (temporary / "worker-rkllm-tmp-89abcdef").read_text() == "a file"


def test_scratch_folder_is_usable_where_folders_cannot_be_locked(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(fd: int, operation: int) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with ScratchFolder() as folder:
        (folder.path / "x").touch()
        remove_abandoned()
        assert (folder.path / "x").exists()
    assert list(temporary.iterdir()) == []


def test_scratch_folder_of_another_process_is_not_shared() -> None:
    folder = ScratchFolder()
    folder.path.mkdir()
    fd = os.open(folder.path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(FileExistsError, match="in use by another process"):
        folder.open()
    os.close(fd)
    assert folder.path.exists()


def test_scratch_folder_is_recreated_if_it_is_removed_before_it_is_locked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = fcntl.flock
    removed: list[int] = []

    def late(fd: int, operation: int) -> None:
        if not removed:
            removed.append(fd)
            folder.path.rmdir()
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    folder = ScratchFolder()
    with folder:
        assert removed
        assert folder.path.is_dir()
