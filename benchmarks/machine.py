"""Description of the machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

# Runs only on idle cores; exits when its parent has ended.
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

    The load is that of the moment before the run. If it is well above zero, absolute figures
    include the load of others, and only ratios are meaningful.
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
def keep_cores_awake() -> Iterator[None]:
    """Keep the cores from sleeping within the context.

    A core that sleeps between two tokens takes long to wake up, with cold caches: on a virtual
    machine that is most of a single token's latency. Cores that decode a model do not sleep, and
    boards run at a fixed clock. The busy processes have the lowest priority.
    """
    with ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            idler = stack.enter_context(subprocess.Popen([sys.executable, "-c", _IDLER]))
            stack.callback(idler.kill)
        yield


# Whether the cores sleep between two tokens.
CORES_ASLEEP = "cores asleep"
MOODS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    CORES_ASLEEP: nullcontext,
    "cores awake": keep_cores_awake,
}
