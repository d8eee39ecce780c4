"""Folders of engine processes, and how a process is said to have ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine.hosts.spawning import death, new_folder


def test_what_a_killed_process_left_behind_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f"worker-rkllm-{dead.pid}-abc"
    others = [
        tmp_path / f"worker-rkllm-{os.getpid()}-abc",
        tmp_path / "worker-rkllm-of-somebody",
        tmp_path / f"another-{dead.pid}-abc",
    ]
    for folder in (left, *others):
        (folder / "socket").mkdir(parents=True)
    with new_folder() as own:
        assert not left.exists()
        assert all((folder / "socket").exists() for folder in others)
        assert Path(own).name.startswith(f"worker-rkllm-{os.getpid()}-")
    assert not Path(own).exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by SIGKILL"),
        (-250, "was killed by signal 250"),
    ],
)
def test_how_it_ended(code: int, said: str) -> None:
    assert death(code) == said
