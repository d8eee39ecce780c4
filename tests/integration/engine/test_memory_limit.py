"""The memory limit of an engine process, as the kernel enforces it; qemu does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.hosts import memory_limit


@pytest.mark.parametrize(
    "code",
    [
        "bytearray(400 * 2**20)",
        # As Rust does: one line, and `abort`.
        "import os; os.write(2, b'memory allocation of 9 bytes failed'); os.abort()",
    ],
)
def test_note_names_the_setting_for_real_processes(code: str) -> None:
    code = f"from engine.hosts.memory_limit import limit_memory; limit_memory(300); {code}"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    note = memory_limit.memory_note(ended.returncode, ended.stderr.splitlines(), 300)
    assert note == ": it ran out of the 300 MB that ENGINE_MEMORY_MB allows"


@pytest.mark.parametrize(("megabytes", "refused"), [(300, True), (0, False)])
def test_process_over_its_limit_is_refused_memory(megabytes: int, refused: bool) -> None:
    code = (
        f"from engine.hosts.memory_limit import limit_memory; limit_memory({megabytes})\n"
        "bytearray(400 * 2**20)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ("MemoryError" in ended.stderr) is refused
    assert (ended.returncode != 0) is refused
