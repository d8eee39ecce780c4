"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> str:
    """Return one line: cores, CPU, load, interpreter.

    The load is of the moment before the run: well above zero, the absolute figures are a
    neighbour's as much as ours, and only ratios are worth reading.
    """
    cores = len(os.sched_getaffinity(0))
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{cores} cores, {_cpu()}, load {load}, Python {platform.python_version()}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unnamed CPU'} ({platform.machine()})"
