"""Helpers for processes that load a native library: signals, and an exit that cannot hang."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
# The value of Rockchip's own programs.
_MAX_OPEN_FILES = 102_400


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, even if a library call hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the call above.
    if os.getppid() != parent_pid:
        exit_now(0)


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM: the whole process group gets them, and the parent drains first.

    Call it again after loading, because llama.cpp's server installs handlers of its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def raise_open_files_limit() -> None:
    """Raise the limit of open files to what the system allows; shells often set it to 1,024.

    Each connection needs one, and RKLLM opens files for its buffers (rknn-llm#17, #62).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def exit_now(code: int) -> NoReturn:
    """End the process without cleanup: threads stuck in a native library cannot be joined."""
    os._exit(code)
