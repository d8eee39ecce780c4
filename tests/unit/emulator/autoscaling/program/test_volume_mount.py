"""The process that mounts a folder at `/runpod-volume` before it runs a command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from emulator.autoscaling.program import volume_mount
from tests.volumes import can_mount

PYTHON = (sys.executable, "-I", "-S")
# Runs a command as a user without root's rights, who may still read the files of this one.
AS_ORDINARY_USER = """
import ctypes, os, sys
user, group = os.geteuid(), os.getegid()
if ctypes.CDLL(None).unshare(0x10000000) == 0:
    maps = {"setgroups": "deny", "uid_map": f"1000 {user} 1", "gid_map": f"1000 {group} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
os.execv(sys.argv[1], sys.argv[1:])
"""
WRITER = """
import os
from pathlib import Path
Path("/runpod-volume/x").write_text("from the worker")
print(os.getcwd())
print(sorted(os.listdir("/")))
print(bool(os.statvfs("/").f_flag & os.ST_RDONLY))
"""


def run_mounted(
    folder: Path, code: str, *, before: Sequence[str] = (), cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python code under `volume_mount.py`."""
    return subprocess.run(
        [*before, *PYTHON, volume_mount.__file__, str(folder), *PYTHON, "-c", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("before", [(), (*PYTHON, "-c", AS_ORDINARY_USER)], ids=["user", "other"])
def test_command_has_the_folder_and_the_other_entries_of_the_root(
    tmp_path: Path, before: Sequence[str]
) -> None:
    volume = tmp_path / "my volume"
    volume.mkdir()
    entries = sorted(os.listdir("/"))
    ran = run_mounted(volume, WRITER, before=before, cwd=tmp_path)
    if can_mount(as_root=not before and os.geteuid() == 0):
        assert (ran.returncode, ran.stderr) == (0, "")
        assert (volume / "x").read_text() == "from the worker"
        lines = ran.stdout.splitlines()
        assert lines[:2] == [str(tmp_path), str(sorted({*entries, "runpod-volume"}))]
        if "runpod-volume" not in entries:
            # Files written to `/` would not reach the machine's `/` and would be lost silently.
            assert lines[2] == "True"
    else:
        assert ran.returncode == volume_mount.EXIT_NOT_MOUNTED
        assert ran.stderr.startswith(f"{volume} cannot be mounted at /runpod-volume: ")
    assert sorted(os.listdir("/")) == entries


def test_command_keeps_its_arguments_and_its_exit_code(tmp_path: Path) -> None:
    code = "import sys; sys.exit(7 if sys.argv[1:] == ['a b', ''] else 1)"
    ran = subprocess.run(
        [*PYTHON, volume_mount.__file__, str(tmp_path), *PYTHON, "-c", code, "a b", ""],
        timeout=60,
    )
    assert ran.returncode == (7 if can_mount() else volume_mount.EXIT_NOT_MOUNTED)


def test_missing_folder_is_one_sentence_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    ran = run_mounted(folder, "print('not reached')")
    assert (ran.returncode, ran.stdout) == (volume_mount.EXIT_NOT_MOUNTED, "")
    assert ran.stderr.startswith(f"{folder} cannot be mounted at /runpod-volume: ")
    assert ran.stderr.count("\n") == 1
    if can_mount():
        assert "No such file or directory" in ran.stderr


def test_mount_needs_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert volume_mount.main(str(tmp_path), ["/bin/true"]) == volume_mount.EXIT_NOT_MOUNTED
    sentence = f"{tmp_path} cannot be mounted at /runpod-volume: this needs Linux\n"
    assert capsys.readouterr().err == sentence


def test_folder_that_is_already_there_needs_no_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    monkeypatch.setattr(volume_mount, "VOLUME", str(link))
    namespace = os.readlink("/proc/self/ns/mnt")
    volume_mount.mount_volume(str(tmp_path))
    assert os.readlink("/proc/self/ns/mnt") == namespace
