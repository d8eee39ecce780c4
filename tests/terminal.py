"""Run a program with a terminal as its stderr."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence


def run_on_terminal(
    command: Sequence[str], *, cwd: os.PathLike[str], environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command with a terminal as its stderr; return its exit code and the output."""
    ours, theirs = pty.openpty()
    # A new terminal has no size, so progress bars would have no room.
    termios.tcsetwinsize(theirs, (24, 120))
    output = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(ours, 65536):
                output.extend(chunk)
        except OSError:
            # Linux reports the end of the output as an error once the other side is closed.
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            timeout=60,
            check=False,
        )
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return done.returncode, output.decode()
