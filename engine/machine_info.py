"""System, processors and memory, as this process sees them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def describe_machine() -> Iterator[tuple[str, Any]]:
    """Yield the machine's properties as name and value, for a report; None if unknown."""
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "python", platform.python_version()
    yield "CPUs", os.cpu_count()
    meminfo = Path("/proc/meminfo")
    yield "memory, MB", _megabytes(meminfo, "MemTotal")
    yield "available, MB", _megabytes(meminfo, "MemAvailable")


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
