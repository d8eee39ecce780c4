"""What a report says of the machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine import machine_info


def test_a_report_says_what_there_is() -> None:
    found = dict(machine_info.describe_machine())
    assert found["CPUs"] == os.cpu_count()
    assert found["python"] == sys.version.split()[0]
    assert found["memory, MB"] >= found["available, MB"] > 0


HOLDS = """
from engine import machine_info as machine
before = machine.resident_mb()
held = b"x" * 50_000_000
print(machine.resident_mb() - before)
"""


def test_memory_that_is_held_is_counted() -> None:
    # In a process where nobody else lets go of any meanwhile.
    told = subprocess.run([sys.executable, "-c", HOLDS], capture_output=True, check=True)
    assert 50_000_000 / 2**20 * 0.9 < float(told.stdout) < 100


def test_a_machine_without_proc_is_described_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.read_text", _refuse)
    assert machine_info.resident_mb() is None
    assert dict(machine_info.describe_machine())["memory, MB"] is None


def _refuse(*args: object, **options: object) -> str:
    raise FileNotFoundError
