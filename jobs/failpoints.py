"""Places where a test has the process killed, to see that nothing acknowledged is lost there."""

from __future__ import annotations

import os
import signal

# `NAME` or `NAME:N`, for the N-th time it is passed.
VARIABLE = "FAILPOINT"
# Names a file that is made at the kill. It happens once: the process that comes after lives.
MARK = "FAILPOINT_MARK"

_name, _, _count = os.environ.get(VARIABLE, "").partition(":")
_left = int(_count or 1)


def hit(name: str) -> None:
    """Die here, as by kill -9, if this is the failpoint that the environment names."""
    global _left
    if name == _name:
        _left -= 1
        if _left == 0 and _first():
            os.kill(os.getpid(), signal.SIGKILL)


def _first() -> bool:
    mark = os.environ.get(MARK)
    if mark is None:
        return True
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
