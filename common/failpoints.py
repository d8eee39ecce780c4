"""Named places where a test kills the process, to show that acknowledged work survives."""

from __future__ import annotations

import os
import signal

# `NAME`, or `NAME:N` to kill the process when the failpoint is passed for the N-th time.
NAME_VARIABLE = "FAILPOINT"
# Path of a file that is created at the kill. While it exists no process is killed, so the process
# that is started next survives.
MARKER_VARIABLE = "FAILPOINT_MARK"

_name, _, _count = os.environ.get(NAME_VARIABLE, "").partition(":")
_remaining = int(_count or 1)


def failpoint(name: str) -> None:
    """Kill this process, as `kill -9` does, if the environment selects this failpoint."""
    global _remaining
    if name == _name:
        _remaining -= 1
        if _remaining == 0 and _create_marker():
            os.kill(os.getpid(), signal.SIGKILL)


def _create_marker() -> bool:
    """Create the marker file; return False if it exists: a process was killed before."""
    path = os.environ.get(MARKER_VARIABLE)
    if path is None:
        return True
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
