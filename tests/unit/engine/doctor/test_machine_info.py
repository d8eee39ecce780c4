"""The properties of the machine in a report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.usable_cpus import describe_usable_cpus
from engine.doctor import machine_info


def test_describe_machine_yields_all_properties() -> None:
    properties = dict(machine_info.describe_machine())
    assert properties["CPUs"] == os.cpu_count()
    assert properties["usable CPUs"] == describe_usable_cpus()
    assert properties["python"] == sys.version.split()[0]
    assert properties["memory, MB"] >= properties["available, MB"] > 0


HOLDS = """
from engine.doctor import machine_info as machine
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


def _write_capacities(root: Path, capacities: dict[int, int]) -> None:
    for cpu, capacity in capacities.items():
        path = root / f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity"
        path.parent.mkdir(parents=True)
        path.write_text(f"{capacity}\n")


def test_find_big_cpus_returns_the_fastest_that_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An RK3588: four A55, and two pairs of A76.
    _write_capacities(tmp_path, dict.fromkeys(range(4), 530) | {4: 1024, 5: 1024, 6: 1010, 7: 1010})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5, 6, 7})
    assert machine_info.find_big_cpus(tmp_path) == [5, 6, 7]


def test_find_big_cpus_returns_all_where_none_is_known_to_be_faster(tmp_path: Path) -> None:
    assert machine_info.find_big_cpus(tmp_path) == sorted(os.sched_getaffinity(0))


def _refuse(*args: object, **options: object) -> str:
    raise FileNotFoundError
