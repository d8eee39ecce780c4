"""A limit on the memory of an engine process, so that it fails before the machine runs out."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
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

    This is RLIMIT_DATA and not RLIMIT_AS, which limits all addresses: a model file is mapped
    read-only and shares its memory with the page cache, and an NPU runtime maps the memory of the
    device as shared. Neither counts here. Anonymous memory does: heaps, stacks, the context's
    cache and weights that llama.cpp copies in another order. A value of 0 sets no limit.
    """
    if not megabytes:
        return
    size = megabytes * 2**20
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        size = min(size, hard)
    # The soft limit alone would do; whatever runs in this process must not raise it.
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def default_limit_mb(processes: int = 1, other_models_bytes: int = 0) -> int:
    """Return the default limit of one engine process in MB; 0 if the machine's memory is unknown.

    It is what the model files of the other processes leave of the share for engines, and at least
    an equal part: a large model beside a small one needs most of the memory.
    """
    total = available_bytes()
    if total is None:
        return 0
    share = total * DEFAULT_SHARE
    return int(max(share - other_models_bytes, share / processes) / 2**20)


def available_bytes() -> int | None:
    """Return the memory of the machine, or of the container if that is less."""
    sizes = []
    # Not every system knows these names.
    with suppress(ValueError, OSError):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
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
