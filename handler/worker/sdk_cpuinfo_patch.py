"""Replace a slow query of RunPod's SDK for the processor's name."""

from __future__ import annotations

import platform
import re
from importlib import import_module
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")
_NAME = re.compile(r"^model name\s*:\s*(.+?)\s*$", re.MULTILINE)


def processor_name() -> str:
    """Return the processor's name, or its architecture if Linux has no name, as on ARM."""
    match = _NAME.search(_CPUINFO.read_text()) if _CPUINFO.exists() else None
    return match.group(1) if match else platform.processor() or platform.machine()


def patch_cpuinfo() -> None:
    """Replace py-cpuinfo's function for the SDK. Call this before the SDK is imported.

    py-cpuinfo starts a process to examine the processor. That delays each worker's start by more
    than a second, for a line that only the SDK's debugger prints.
    """
    try:
        cpuinfo: Any = import_module("cpuinfo")
    except ModuleNotFoundError:
        # An SDK version that does not use py-cpuinfo.
        return
    cpuinfo.get_cpu_info = lambda: {"brand_raw": processor_name()}
