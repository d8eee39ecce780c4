"""`keeper.py COMMAND…`: runs a worker in a process group of its own, and leaves none of it behind.

A worker has children, the SDK's heartbeat first, that outlive it when it is killed. The keeper ends
them with it, and all of them when its own stdin ends: when the server closes it, or is no more,
whatever killed that. SIGTERM is handed on to the worker alone, which then finishes what it runs.

Run as a file, by an interpreter without site-packages: it should cost next to nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import FrameType


def main(command: list[str]) -> int:
    """Run the command; return its exit code, as a shell tells it."""
    worker: subprocess.Popen[bytes] | None = None
    told = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True
        if worker is not None and worker.returncode is None:
            os.kill(worker.pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    # Ctrl-C is for the server, which tells its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        return 127
    if told:
        os.kill(worker.pid, signal.SIGTERM)
    threading.Thread(target=_kill_at_end, args=(worker.pid,), daemon=True).start()
    code = worker.wait()
    _kill(worker.pid)
    return code if code >= 0 else 128 - code


def _kill_at_end(group: int) -> None:
    while os.read(0, 4096):
        pass
    _kill(group)


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
