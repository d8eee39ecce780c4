"""Starting a process of the engine's, and saying how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
# How llama.cpp's threads wait for one another; the policy is what a person would set.
_POLICY = "OMP_WAIT_POLICY"
_WAITING = {_POLICY: "PASSIVE", "GOMP_SPINCOUNT": "300"}


def thread_wait_env(known: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for how llama.cpp's threads wait that `known` leaves open.

    They do so hundreds of times a token. To sleep each time costs a quarter of the tokens, and to
    spin on costs as many or far more as soon as anything else wants a core; so they spin for some
    15 µs and then sleep (decision 15).
    """
    return {} if _POLICY in known else {n: _WAITING[n] for n in _WAITING.keys() - known.keys()}


def start_process(
    module: str, *arguments: str, folder: str, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a module that is told its parent's process id last. Raises OSError."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    # Without the working folder on the path (-P): its packages are not ours.
    command = [sys.executable, "-P", "-m", module, *arguments, str(os.getpid())]
    own = {"PYTHONPATH": path, "TMPDIR": folder}
    environment = {**os.environ, **thread_wait_env(os.environ), **own}
    return subprocess.Popen(command, env=environment, **options)


def describe_exit(code: int) -> str:
    """Return how a process ended, as the rest of a sentence about it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
