"""The limit on an engine process's memory: its default, and what is said when it is reached."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.hosts import memory

_HUNDRED_MB = 100 * 2**20


def test_default_is_a_share_of_the_machine_less_the_models_of_other_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 10_000 * 2**20)
    assert memory.default_limit_mb() == 8_000
    # A large model beside a small one of 500 MB, and the small one beside it.
    assert memory.default_limit_mb(2, 500 * 2**20) == 7_500
    assert memory.default_limit_mb(2, 6_000 * 2**20) == 4_000
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    assert memory.default_limit_mb() == 0


@pytest.mark.parametrize(("written", "limited"), [("104857600\n", True), ("max\n", False)])
def test_default_follows_the_container_if_it_has_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, limited: bool
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(written)
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", (str(tmp_path / "none"), str(limit)))
    assert (memory.available_bytes() == _HUNDRED_MB) is limited


def test_note_names_the_setting_when_memory_was_refused() -> None:
    for words in ("memory allocation of 8589934592 bytes failed", "what():  std::bad_alloc"):
        assert memory.memory_note(words, 500) == (
            ": it ran out of the 500 MB that ENGINE_MEMORY_MB allows"
        )
        assert memory.memory_note(words, 0) == ": it ran out of memory"
    assert memory.memory_note("Segmentation fault", 500) == ""


@pytest.mark.parametrize(("megabytes", "refused"), [(300, True), (0, False)])
def test_process_over_its_limit_is_refused_memory(megabytes: int, refused: bool) -> None:
    code = (
        f"from engine.hosts.memory import limit_memory; limit_memory({megabytes})\n"
        "bytearray(400 * 2**20)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ("MemoryError" in ended.stderr) is refused
    assert (ended.returncode != 0) is refused


def test_mapped_file_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with path.open("wb") as file:
        file.truncate(2**30)
    code = (
        "import mmap; from engine.hosts.memory import limit_memory; limit_memory(200)\n"
        f"file = open({str(path)!r}, 'rb')\n"
        "data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "print(len(data))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.stdout.strip() == str(2**30), ended.stderr
