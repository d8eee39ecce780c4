"""Stands in for py-cpuinfo in processes that the tests start, which have this folder in PYTHONPATH.

RunPod's SDK asks it for the processor's name when it is imported. To answer, py-cpuinfo starts
another Python and several programs, which cost more than all other imports of a worker together.
"""

from __future__ import annotations


def get_cpu_info() -> dict[str, str]:
    """Return the one value that the SDK reads."""
    return {"brand_raw": "a processor"}
