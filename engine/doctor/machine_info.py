"""System, processors and memory, as this process sees them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.usable_cpus import describe_usable_cpus

# Big CPUs of one chip differ a little; small ones have about half of the capacity.
_BIG_SHARE = 0.75


def describe_machine() -> Iterator[tuple[str, Any]]:
    """Yield the machine's properties as name and value, for a report; None if unknown."""
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "python", platform.python_version()
    yield "CPUs", os.cpu_count()
    yield "usable CPUs", describe_usable_cpus()
    meminfo = Path("/proc/meminfo")
    yield "memory, MB", _megabytes(meminfo, "MemTotal")
    yield "available, MB", _megabytes(meminfo, "MemAvailable")


def find_big_cpus(root: Path = Path("/")) -> list[int]:
    """Return the numbers of the fastest CPUs that this process may use, such as an RK3588's A76.

    On systems that do not report how fast each is, all of them.
    """
    allowed = sorted(os.sched_getaffinity(0))
    capacities = {cpu: _read_capacity(root, cpu) for cpu in allowed}
    highest = max(capacities.values())
    return [cpu for cpu in allowed if capacities[cpu] >= _BIG_SHARE * highest]


def _read_capacity(root: Path, cpu: int) -> int:
    path = root / f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity"
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0


def resident_mb() -> float | None:
    """Return the resident memory of this process; None on systems without /proc."""
    return _megabytes(Path("/proc/self/status"), "VmRSS")


def _megabytes(path: Path, name: str) -> float | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    match = next((line for line in lines if line.startswith(f"{name}:")), None)
    return round(int(match.split()[1]) / 1024, 1) if match else None
