"""A limit on the memory of an engine process, so that it fails before the machine runs out."""

from __future__ import annotations

import os
import resource
from pathlib import Path

SETTING = "ENGINE_MEMORY_MB"
# Of what the machine or the container has; the rest is for the server and everything else.
DEFAULT_SHARE = 0.8
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# How C++, Rust, Python and llama.cpp report memory that was refused.
_REFUSALS = (
    "memory allocation of",
    "bad_alloc",
    "MemoryError",
    "Cannot allocate memory",
    "failed to allocate",
    "out of memory",
    # A thread whose stack does not fit.
    "Resource temporarily unavailable",
)


def limit_memory(megabytes: int) -> None:
    """Limit the memory that this process may write to, the files it has mapped not counted.

    The data limit and not the address space: a model file is mapped read-only, is shared with the
    page cache and can be larger than memory, and a runtime's device memory is no memory of ours.
    A value of 0 sets no limit.
    """
    if not megabytes:
        return
    size = megabytes * 2**20
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        size = min(size, hard)
    # The soft limit alone would do; whatever runs in this process must not raise it.
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def default_limit_mb(processes: int = 1) -> int:
    """Return each engine process's share of the memory that there is; 0 if that is unknown."""
    total = available_bytes()
    return int(total * DEFAULT_SHARE / processes / 2**20) if total else 0


def available_bytes() -> int | None:
    """Return the memory of the machine, or of the container if that is less."""
    sizes = []
    try:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):
        # This system does not say.
        sizes = []
    for path in _CGROUP_LIMITS:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        # "max" is no limit.
        if text.isdigit() and int(text):
            sizes.append(int(text))
    return min(sizes, default=None)


def memory_note(last_words: str, megabytes: int) -> str:
    """Return the end of a sentence about a process whose last words say that memory ran out."""
    if not any(refusal in last_words for refusal in _REFUSALS):
        return ""
    if not megabytes:
        return ": it ran out of memory"
    return f": it ran out of the {megabytes} MB that {SETTING} allows"
