"""A limit on the memory of an engine process, so that it fails before the machine runs out."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

SETTING = "ENGINE_MEMORY_MB"
# Of what the machine or the container has; the rest is for the server and everything else.
DEFAULT_SHARE = 0.8
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# How the allocators of Rust, C++, Python and C report that the process got no more memory.
_PROCESS_REFUSALS = (
    "memory allocation of",
    "std::bad_alloc",
    "MemoryError",
    "[Errno 12] Cannot allocate memory",
)
# How libraries report that memory ran out, of a device or of the process.
_LIBRARY_REFUSALS = ("out of memory", "failed to allocate", "cannot allocate memory")
# C++ prints two lines, and other threads may print one in between. An older line may be about
# memory that the library could do without, such as pages that could not be locked.
_LINES_OF_REFUSAL = 3


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


def memory_note(exit_code: int | None, last_lines: Sequence[str], megabytes: int) -> str:
    """Return the end of a sentence about a process that ended because it got no more memory.

    Empty without evidence for that, which is that the process ended by itself, by an error or
    `abort`, right after it printed that memory was refused. A segmentation fault or SIGKILL has
    other causes as often, whatever was printed before. The setting is named only if an allocator
    of the process refused: its limit does not count the memory of a device.

    `exit_code` is the one of `subprocess`, negative for a signal, and None if it is not known.
    """
    has_ended_itself = exit_code is not None and (exit_code > 0 or exit_code == -signal.SIGABRT)
    if not has_ended_itself or not last_lines:
        return ""
    recent = last_lines[-_LINES_OF_REFUSAL:]
    if any(refusal in line for line in recent for refusal in _PROCESS_REFUSALS):
        if not megabytes:
            return ": it ran out of memory"
        return f": it ran out of the {megabytes} MB that {SETTING} allows"
    last_line = last_lines[-1].lower()
    if any(refusal in last_line for refusal in _LIBRARY_REFUSALS):
        return ": it reported that memory ran out"
    return ""
