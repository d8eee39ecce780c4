"""The memory limit of an engine process: its default, and the note when it is reached."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.hosts import memory_limit

_HUNDRED_MB = 100 * 2**20


def test_default_is_a_share_of_the_machine_less_the_models_of_other_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_limit, "available_bytes", lambda: 10_000 * 2**20)
    assert memory_limit.default_limit_mb() == 8_000
    # A large model next to one of 500 MB, and the other way round.
    assert memory_limit.default_limit_mb(2, 500 * 2**20) == 7_500
    assert memory_limit.default_limit_mb(2, 6_000 * 2**20) == 4_000
    monkeypatch.setattr(memory_limit, "available_bytes", lambda: None)
    assert memory_limit.default_limit_mb() == 0


@pytest.mark.parametrize(("written", "limited"), [("104857600\n", True), ("max\n", False)])
def test_default_follows_the_container_if_it_has_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, limited: bool
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(written)
    monkeypatch.setattr(memory_limit, "_CGROUP_LIMITS", (str(tmp_path / "none"), str(limit)))
    assert (memory_limit.available_bytes() == _HUNDRED_MB) is limited


BAD_ALLOC = ["terminate called after throwing", "  what():  std::bad_alloc"]
ABORTED, SEGFAULT, KILLED = -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGKILL


@pytest.mark.parametrize(
    ("exit_code", "last_lines"),
    [
        (ABORTED, ["loading", "memory allocation of 8589934592 bytes failed"]),
        (ABORTED, [*BAD_ALLOC, "another thread's line"]),
        (1, ["Traceback (most recent call last):", "MemoryError"]),
        (1, ["OSError: [Errno 12] Cannot allocate memory"]),
    ],
)
def test_note_names_the_setting_when_an_allocator_refused_memory(
    exit_code: int, last_lines: list[str]
) -> None:
    assert memory_limit.memory_note(exit_code, last_lines, 500) == (
        ": it ran out of the 500 MB that ENGINE_MEMORY_MB allows"
    )
    assert memory_limit.memory_note(exit_code, last_lines, 0) == ": it ran out of memory"


@pytest.mark.parametrize("line", ["E RKNN: out of memory", "ggml: failed to allocate buffer"])
def test_note_does_not_name_the_setting_when_the_memory_may_be_a_devices(line: str) -> None:
    assert memory_limit.memory_note(ABORTED, [line], 500) == ": it reported that memory ran out"


@pytest.mark.parametrize(
    ("exit_code", "last_lines"),
    [
        # Each of these exits has other causes, whatever was printed before.
        (SEGFAULT, ["E RKNN: out of memory"]),
        (SEGFAULT, ["memory allocation of 128 bytes failed"]),
        (-signal.SIGBUS, BAD_ALLOC),
        (KILLED, ["MemoryError"]),
        (0, ["MemoryError"]),
        (None, ["MemoryError"]),
        # Not the last line: the process continued without that memory.
        (ABORTED, ["failed to mlock: Cannot allocate memory", "GGML_ASSERT(n > 0) failed"]),
        (ABORTED, [*BAD_ALLOC, "one", "two", "GGML_ASSERT(n > 0) failed"]),
        # A limit on the number of processes gives the same message.
        (ABORTED, ["  what():  Resource temporarily unavailable"]),
        (ABORTED, ["Segmentation fault"]),
        (ABORTED, []),
    ],
)
def test_note_is_empty_when_nothing_shows_that_memory_ran_out(
    exit_code: int | None, last_lines: list[str]
) -> None:
    for megabytes in (500, 0):
        assert memory_limit.memory_note(exit_code, last_lines, megabytes) == ""


def test_note_is_empty_for_a_real_segmentation_fault() -> None:
    code = "print('E RKNN: out of memory', flush=True); import ctypes; ctypes.string_at(0)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == SEGFAULT
    assert memory_limit.memory_note(ended.returncode, ended.stdout.splitlines(), 500) == ""


def test_mapped_file_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with path.open("wb") as file:
        file.truncate(2**30)
    code = (
        "import mmap; from engine.hosts.memory_limit import limit_memory; limit_memory(200)\n"
        f"file = open({str(path)!r}, 'rb')\n"
        "data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "print(len(data))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.stdout.strip() == str(2**30), ended.stderr
