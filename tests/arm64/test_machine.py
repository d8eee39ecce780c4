"""`make test-arm64` runs where boards do: told by the machine, not by how it was started."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from pathlib import Path

from engine.backends.rkllm.library import check_machine
from tests.fake_rkllm import build, run, runner


def test_python_is_for_arm64() -> None:
    assert platform.machine() == "aarch64"
    assert sys.byteorder == "little"
    assert ctypes.sizeof(ctypes.c_void_p) == 8


def test_processes_that_are_started_are_for_arm64() -> None:
    # The engine's hosts are started like this.
    program = "import platform, sys; print(platform.machine(), sys.executable)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["aarch64", sys.executable]


def test_stand_in_is_for_arm64(tmp_path: Path) -> None:
    library = build("1.3", tmp_path)
    check_machine(library)
    # e_machine of its header.
    assert library.read_bytes()[18:20] == b"\xb7\x00"
    assert ctypes.CDLL(str(library)).rkllm_run


def test_compiled_programs_run(tmp_path: Path) -> None:
    source, program = tmp_path / "machine.c", tmp_path / "machine"
    # Only compilers for arm64 know the name.
    source.write_text("int main(void)\n{\n    return __aarch64__ + 41;\n}\n")
    run(str(source), "-o", str(program))
    assert subprocess.run([*runner(), program], timeout=60, check=False).returncode == 42
