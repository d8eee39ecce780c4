"""The processor's name, told to RunPod's SDK before it looks for it itself."""

from __future__ import annotations

import platform
import re
from importlib import import_module
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")
_NAME = re.compile(r"^model name\s*:\s*(.+?)\s*$", re.MULTILINE)


def processor_name() -> str:
    """Return the processor's name, its kind where Linux tells none, as on ARM."""
    found = _NAME.search(_CPUINFO.read_text()) if _CPUINFO.exists() else None
    return found.group(1) if found else platform.processor() or platform.machine()


def patch_cpuinfo() -> None:
    """Spare the SDK, which has not been imported yet, its search for the name.

    It asks py-cpuinfo, which starts a process to examine the processor: more than a second of each
    worker's start, for a line that only the SDK's debugger shows.
    """
    try:
        cpuinfo: Any = import_module("cpuinfo")
    except ModuleNotFoundError:
        # An SDK that does without.
        return
    cpuinfo.get_cpu_info = lambda: {"brand_raw": processor_name()}
