"""A limit on the memory of an engine process, so that it fails before the machine runs out."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

SETTING = "ENGINE_MEMORY_MB"
# Share of the memory of the machine or container; the rest is for the server and other programs.
DEFAULT_SHARE = 0.8
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# The messages with which the allocators of Rust, C++, Python and C report an allocation failure.
_PROCESS_REFUSALS = (
    "memory allocation of",
    "std::bad_alloc",
    "MemoryError",
    "[Errno 12] Cannot allocate memory",
)
# The messages with which libraries report that a device or the process is out of memory.
_LIBRARY_REFUSALS = ("out of memory", "failed to allocate", "cannot allocate memory")
# C++ prints two lines, and another thread may print one in between. An older line may be about
# memory that the library did not need, such as pages that could not be locked.
_MAX_REFUSAL_LINES = 3


def limit_memory(megabytes: int) -> None:
    """Limit the memory that this process may write to; mapped files do not count.

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
    # The hard limit is set too, so that no library in this process can raise the soft limit.
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def default_limit_mb(processes: int = 1, other_models_bytes: int = 0) -> int:
    """Return the default limit of one engine process in MB; 0 if the machine's memory is unknown.

    It is the engines' share of the memory minus the model files of the other processes, and at
    least an equal part: of a large and a small model, the large one needs most of the memory.
    """
    total = available_bytes()
    if total is None:
        return 0
    share = total * DEFAULT_SHARE
    return int(max(share - other_models_bytes, share / processes) / 2**20)


def available_bytes() -> int | None:
    """Return the memory of the machine, or of the container if that is less."""
    sizes = []
    # Some systems do not have these names.
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
    """Return the note ": it ran out of memory" for a process that ended for lack of memory, or "".

    The evidence is that the process was not killed but exited, with an error or by `abort`, right
    after it printed that an allocation failed. A segmentation fault or SIGKILL has other causes as
    often, whatever was printed before. The note names the setting only if an allocator of the
    process failed: the limit does not count the memory of a device.

    `exit_code` is the one of `subprocess`, negative for a signal, and None if it is not known.
    """
    has_ended_itself = exit_code is not None and (exit_code > 0 or exit_code == -signal.SIGABRT)
    if not has_ended_itself or not last_lines:
        return ""
    recent = last_lines[-_MAX_REFUSAL_LINES:]
    if any(refusal in line for line in recent for refusal in _PROCESS_REFUSALS):
        if not megabytes:
            return ": it ran out of memory"
        return f": it ran out of the {megabytes} MB that {SETTING} allows"
    last_line = last_lines[-1].lower()
    if any(refusal in last_line for refusal in _LIBRARY_REFUSALS):
        return ": it reported that memory ran out"
    return ""
