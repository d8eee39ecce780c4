"""The number of CPUs that this process may use: its affinity and the CPU limits of its cgroups.

A container with a limit of two CPUs on a machine with 64 still has all 64 in its affinity. Threads
that wait for each other, such as llama.cpp's, would then use up the limit in a fraction of each
period and stop for the rest of it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_ROOT = Path("/")
# The names under which the groups of a process are stored here: version 2 has one hierarchy for
# everything, version 1 has one for CPU time.
_UNIFIED = ""
_CPU = "cpu"
# How mountinfo writes spaces and backslashes in paths.
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")


class _CgroupMount(NamedTuple):
    """A mounted hierarchy: its controller, its folder, and the group that is this folder."""

    controller: str
    folder: PurePosixPath
    group: PurePosixPath


def count_usable_cpus(root: Path = _ROOT) -> int:
    """Return how many CPUs this process may use, at least 1; a part of a CPU counts as one.

    `root` is the folder with `proc` and the mounted cgroups.
    """
    cpus = len(os.sched_getaffinity(0))
    limit = find_cpu_limit(root)
    return cpus if limit is None else min(cpus, max(1, math.ceil(limit)))


def describe_usable_cpus(root: Path = _ROOT) -> str:
    """Return the number of usable CPUs, and that a cgroup limits it if that is the reason."""
    cpus = count_usable_cpus(root)
    available = len(os.sched_getaffinity(0))
    if cpus == available:
        return str(cpus)
    return f"{cpus} (CPU limit of the container or service; without it {available})"


def find_cpu_limit(root: Path = _ROOT) -> float | None:
    """Return how many CPUs' time the cgroups of this process may use; None without a limit.

    The lowest limit of the process's group and of all groups above it that are mounted: the kernel
    enforces each of them (`Documentation/scheduler/sched-bwc.rst`, and `cpu.max` in
    `Documentation/admin-guide/cgroup-v2.rst`). Files that are missing or unreadable set no limit.
    """
    groups = dict(_read_groups(_read(root / "proc/self/cgroup")))
    mounts = _read_mounts(_read(root / "proc/self/mountinfo"))
    limits = [
        _read_limit(root, folder, controller) for controller, folder in _folders(groups, mounts)
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def _read_groups(text: str) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield the groups of a process: lines such as `4:cpu,cpuacct:/docker/1f` and `0::/`."""
    for line in text.splitlines():
        # The path may contain colons.
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            if controller in (_UNIFIED, _CPU):
                yield controller, PurePosixPath(path)


def _read_mounts(text: str) -> Iterator[_CgroupMount]:
    """Yield the cgroup file systems of `/proc/self/mountinfo` that can limit CPU time (proc(5))."""
    for line in text.splitlines():
        mount, _, system = line.partition(" - ")
        mount_fields, system_fields = mount.split(" "), system.split(" ", 2)
        if len(mount_fields) < 5 or len(system_fields) < 3:
            continue
        kind, options = system_fields[0], system_fields[2].split(",")
        group, folder = (PurePosixPath(_unescape(path)) for path in mount_fields[3:5])
        if kind == "cgroup2":
            yield _CgroupMount(_UNIFIED, folder, group)
        elif kind == "cgroup" and _CPU in options:
            yield _CgroupMount(_CPU, folder, group)


def _folders(
    groups: Mapping[str, PurePosixPath], mounts: Iterable[_CgroupMount]
) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield the controllers and folders of the process's groups and of all mounted ones above."""
    for mount in mounts:
        group = groups.get(mount.controller)
        if group is None:
            continue
        yield mount.controller, mount.folder
        # In a container the mount can be its own group while the process's path is that of the
        # machine, or the other way round. Only the mounted folder is certain then.
        if ".." in group.parts or not group.is_relative_to(mount.group):
            continue
        folder = mount.folder
        for name in group.relative_to(mount.group).parts:
            folder /= name
            yield mount.controller, folder


def _read_limit(root: Path, folder: PurePosixPath, controller: str) -> float | None:
    path = root / folder.relative_to("/")
    if controller == _UNIFIED:
        quota, _, period = _read(path / "cpu.max").strip().partition(" ")
    else:
        quota, period = (_read(path / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    # No limit is `max` in version 2 and -1 in version 1.
    if not (quota.isdecimal() and period.isdecimal() and int(quota) and int(period)):
        return None
    return int(quota) / int(period)


def _unescape(path: str) -> str:
    return _OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
