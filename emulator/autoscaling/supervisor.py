"""`supervisor.py COMMAND…`: run a worker in its own process group, and kill the whole group.

A worker has child processes, such as the SDK's heartbeat, that survive when it is killed. The
supervisor kills them when the worker ends, and kills the whole group when its own stdin ends: when
the server closes it, or has ended for any reason. If the supervisor itself is killed, the kernel
kills the worker. SIGTERM is forwarded to the worker only, which then finishes its jobs.

It is run as a file by an interpreter without site-packages, to save time and memory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from types import FrameType

_PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    """Run the command; return its exit code as a shell does, 128 + N after signal N."""
    worker: subprocess.Popen[bytes] | None = None
    is_terminated = False

    def forward_sigterm(number: int, frame: FrameType | None) -> None:
        nonlocal is_terminated
        is_terminated = True
        if worker is not None and worker.returncode is None:
            os.kill(worker.pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward_sigterm)
    # Ctrl-C is for the server, which stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # Safe, because no other thread has been started yet.
        worker = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=_die_with_supervisor,
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        return 127
    if is_terminated:
        os.kill(worker.pid, signal.SIGTERM)
    threading.Thread(target=_kill_at_end_of_stdin, args=(worker.pid,), daemon=True).start()
    code = worker.wait()
    _kill_group(worker.pid)
    return code if code >= 0 else 128 - code


def _die_with_supervisor() -> None:
    """Have the kernel kill the worker if the supervisor dies without killing it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_at_end_of_stdin(group: int) -> None:
    while os.read(0, 4096):
        pass
    _kill_group(group)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
