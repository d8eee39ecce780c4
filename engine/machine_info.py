"""The machine as this process sees it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def describe_machine() -> Iterator[tuple[str, Any]]:
    """Yield what there is, by name, for whoever reads a report; None for what cannot be told."""
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "python", platform.python_version()
    yield "CPUs", os.cpu_count()
    meminfo = Path("/proc/meminfo")
    yield "memory, MB", _megabytes(meminfo, "MemTotal")
    yield "available, MB", _megabytes(meminfo, "MemAvailable")


def resident_mb() -> float | None:
    """Return how much memory this process holds; None where there is no /proc."""
    return _megabytes(Path("/proc/self/status"), "VmRSS")


def _megabytes(path: Path, name: str) -> float | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith(f"{name}:")), None)
    return round(int(found.split()[1]) / 1024, 1) if found else None
