"""What a report says of the machine."""

from __future__ import annotations

import os
import sys

import pytest

from engine import machine


def test_a_report_says_what_there_is() -> None:
    found = dict(machine.described())
    assert found["CPUs"] == os.cpu_count()
    assert found["python"] == sys.version.split()[0]
    assert found["memory, MB"] >= found["available, MB"] > 0


def test_memory_that_is_held_is_counted() -> None:
    before = machine.resident_mb()
    held = b"x" * 50_000_000
    after = machine.resident_mb()
    assert before is not None
    assert after is not None
    assert len(held) / 2**20 * 0.9 < after - before


def test_a_machine_without_proc_is_described_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.read_text", _refuse)
    assert machine.resident_mb() is None
    assert dict(machine.described())["memory, MB"] is None


def _refuse(*args: object, **options: object) -> str:
    raise FileNotFoundError
