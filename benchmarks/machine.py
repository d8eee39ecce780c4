"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

# Runs only when a core has nothing else to do; ends by itself when it has become an orphan.
_IDLER = """
import os
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


def describe() -> str:
    """Return one line: cores, CPU, load, interpreter.

    The load is of the moment before the run: well above zero, the absolute figures are a
    neighbour's as much as ours, and only ratios are worth reading.
    """
    cores = len(os.sched_getaffinity(0))
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{cores} cores, {_cpu()}, load {load}, Python {platform.python_version()}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unnamed CPU'} ({platform.machine()})"


@contextmanager
def awake() -> Iterator[None]:
    """Keep the cores from sleeping for as long as this lasts.

    A core that sleeps between two tokens takes long to wake, and finds its caches cold: on a
    virtual machine that is most of a lone token's way. Cores that decode a model do not sleep, and
    boards are run at a fixed clock. What keeps them awake gives way to everything else.
    """
    with ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            idler = stack.enter_context(subprocess.Popen([sys.executable, "-c", _IDLER]))
            stack.callback(idler.kill)
        yield


# How the cores spend the time between two tokens.
MOODS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "cores asleep": nullcontext,
    "cores awake": awake,
}
