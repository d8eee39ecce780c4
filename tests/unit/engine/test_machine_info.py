"""The properties of the machine in a report."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine import machine_info


def test_describe_machine_yields_all_properties() -> None:
    properties = dict(machine_info.describe_machine())
    assert properties["CPUs"] == os.cpu_count()
    assert properties["python"] == sys.version.split()[0]
    assert properties["memory, MB"] >= properties["available, MB"] > 0


HOLDS = """
from engine import machine_info as machine
before = machine.resident_mb()
held = b"x" * 50_000_000
print(machine.resident_mb() - before)
"""


def test_resident_mb_includes_allocated_memory() -> None:
    # In its own process, where no other code frees memory meanwhile.
    result = subprocess.run([sys.executable, "-c", HOLDS], capture_output=True, check=True)
    assert 50_000_000 / 2**20 * 0.9 < float(result.stdout) < 100


def test_describe_machine_works_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.read_text", _refuse)
    assert machine_info.resident_mb() is None
    assert dict(machine_info.describe_machine())["memory, MB"] is None


def _refuse(*args: object, **options: object) -> str:
    raise FileNotFoundError
