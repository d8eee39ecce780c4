"""Information on processes from /proc."""

from __future__ import annotations

import os
from pathlib import Path

STORE = "jobs.sqlite.server"
ENGINE_HOST = "engine.hosts.child"


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and not yet waited for."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids += map(int, task.read_text().split())
        except OSError:
            continue
    return pids


def child(pid: int, module: str) -> int | None:
    """Return the child of a process that runs a module, while there is one."""
    for each in children(pid):
        try:
            arguments = Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if module.encode() in arguments and alive(each):
            return each
    return None


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def resident_bytes(pid: int) -> int:
    """Return how much memory a process has."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    """Return how many files a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    """Return how many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))
