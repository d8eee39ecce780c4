"""End what a test session has started when the session ends, even if it is killed.

A session that is killed cannot stop its servers. So it starts a guard, a process with a pipe that
closes when pytest ends for any reason. The guard then kills all processes that have inherited the
session's mark in their environment. Programs of the fork server die with their parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MARK = "WORKER_RKLLM_TEST_SESSION"
# Processes may start others while they are killed.
_ROUNDS, _ROUND_S = 3, 0.1


def install(config: Any) -> None:
    """Start the guard of this session, if no guard of an outer session is there."""
    if MARK in os.environ:
        return
    os.environ[MARK] = str(os.getpid())
    reader, writer = os.pipe()
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, os.environ[MARK]],
        stdin=reader,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env={},
    )
    os.close(reader)

    def end() -> None:
        del os.environ[MARK]
        os.close(writer)
        guard.wait()

    config.add_cleanup(end)


def find_marked(mark: str) -> list[int]:
    """Return the ids of the processes that were started in the session with this mark."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        try:
            variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:  # it is no process, has ended, or is another user's
            continue
        if entry in variables:
            found.append(int(name))
    return found


def main(mark: str) -> None:
    """Wait until the session ends, and kill what it has left running."""
    while os.read(0, 4096):
        pass
    for _ in range(_ROUNDS):
        pids = find_marked(mark)
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(_ROUND_S)


if __name__ == "__main__":
    main(sys.argv[1])
