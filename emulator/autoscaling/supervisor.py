"""`supervisor.py [--on-kill JSON] COMMAND…`: run a worker in a process group, and kill the group.

A worker has child processes, such as the SDK's heartbeat, that survive when it is killed. The
supervisor kills them when the worker ends, and kills the whole group when its own stdin ends: when
the server closes it, or has ended for any reason. If the supervisor itself is killed, the kernel
kills the worker. SIGTERM is forwarded to the worker only, which then finishes its jobs.

A container does not end with the program that runs it. `--on-kill` is the command that removes it,
as a JSON array; it runs when stdin has ended.

It is run as a file by an interpreter without site-packages, to save time and memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from types import FrameType

_PR_SET_PDEATHSIG = 1
_ON_KILL = "--on-kill"
_ON_KILL_TIMEOUT_S = 60


def main(command: list[str]) -> int:
    """Run the command; return its exit code as a shell does, 128 + N after signal N."""
    on_kill: list[str] = []
    if command[0] == _ON_KILL:
        on_kill, command = json.loads(command[1]), command[2:]
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
    killer = _Killer(worker.pid, on_kill)
    killer.start()
    code = worker.wait()
    _kill_group(worker.pid)
    if killer.is_killing.is_set():
        killer.join()
    return code if code >= 0 else 128 - code


def _die_with_supervisor() -> None:
    """Have the kernel kill the worker if the supervisor dies without killing it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Killer(threading.Thread):
    """Kills the worker's group when stdin ends, and runs the command for its container."""

    def __init__(self, group: int, on_kill: list[str]) -> None:
        super().__init__(daemon=True)
        self._group = group
        self._on_kill = on_kill
        self.is_killing = threading.Event()

    def run(self) -> None:
        while os.read(0, 4096):
            pass
        self.is_killing.set()
        _kill_group(self._group)
        if self._on_kill:
            # The server reports a container that stays; here is nowhere to report it.
            subprocess.run(
                self._on_kill,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_ON_KILL_TIMEOUT_S,
                check=False,
            )


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
