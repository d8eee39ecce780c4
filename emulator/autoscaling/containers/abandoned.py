"""Containers of servers that were killed: found by their label, and removed at the next start."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from emulator.autoscaling.containers.container_engine import ContainerEngine, ContainerEngineError

logger = logging.getLogger(__name__)

# Each worker's container has it, with the server's process as its value.
SERVER_LABEL = "worker-rkllm.server"
_PROC = Path("/proc")
_BOOT_ID = Path("sys/kernel/random/boot_id")
# Of /proc/PID/stat, counted after the name: when the process started, in ticks since the boot.
_START_TIME = 19


def describe_this_process(proc: Path = _PROC) -> str:
    """Return what tells this process from all others: boot, namespace, number and start time."""
    return "/".join((_namespace(proc), str(os.getpid()), _start_time(proc, os.getpid()) or "0"))


def remove_abandoned_containers(engine: ContainerEngine) -> int:
    """Remove the workers of servers that run no more; return how many there were.

    Those of another machine or container, which may use the same engine, are left alone: whether
    their server runs cannot be seen from here.
    """
    removed = 0
    try:
        for container in engine.list_containers(SERVER_LABEL):
            labels = (container.get("Config") or {}).get("Labels") or {}
            if _has_ended(str(labels.get(SERVER_LABEL, ""))):
                engine.call(*engine.remove_command(str(container["Id"]))[1:])
                removed += 1
    except ContainerEngineError as error:
        logger.warning("containers of an earlier server cannot be removed: %s", error)
    if removed:
        logger.info("%s containers of a server that was killed were removed", removed)
    return removed


def _has_ended(label: str, proc: Path = _PROC) -> bool:
    """Return whether the server of a label was a process like this one and runs no more."""
    namespace, _, process = label.rpartition("/")[0].rpartition("/")
    started = label.rpartition("/")[2]
    if namespace != _namespace(proc) or not process.isdecimal():
        return False
    return _start_time(proc, int(process)) != started


def _namespace(proc: Path) -> str:
    boot, processes = "unknown", "unknown"
    # Not every system has them; then all processes count as those of one namespace.
    with contextlib.suppress(OSError):
        boot = (proc / _BOOT_ID).read_text().strip()
        processes = os.readlink(proc / "self/ns/pid")
    return f"{boot}/{processes}"


def _start_time(proc: Path, process: int) -> str | None:
    """Return when a process started; None if there is no such process."""
    try:
        # The name, in parentheses, may contain anything.
        return (proc / str(process) / "stat").read_text().rpartition(")")[2].split()[_START_TIME]
    except (OSError, IndexError):
        return None
