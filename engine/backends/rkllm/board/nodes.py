"""The device nodes that the runtime opens, and those among them that this user cannot open."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
_READ_WRITE = os.R_OK | os.W_OK
_GROUP_READ_WRITE = stat.S_IRGRP | stat.S_IWGRP
# The files that Docker and Podman put into each container.
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")
_HEAPS = "sys/class/dma_heap"
_RULES_FILE = "/etc/udev/rules.d/99-rknpu.rules"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Nodes with one rule of udev, and the group that the rule gives them to."""

    rule: str
    group: str


# Distributions have these two rules; Armbian has the second one since 2026-06-30 (build#10085).
_RENDER = _Kind('SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="render", MODE="0660"', "render")
_HEAP = _Kind('SUBSYSTEM=="dma_heap", GROUP="video", MODE="0660"', "video")
# The node of older kernels.
_MISC = _Kind('KERNEL=="rknpu", GROUP="render", MODE="0660"', "render")


def find_npu_node(root: Path = _ROOT) -> Path | None:
    """Return the path that the NPU's node has if it exists; None on a machine without an NPU.

    The kernel names it in /sys, also in a container that has not got the node. Older kernels have
    `/dev/rknpu`, newer ones a render node. Its number differs: the graphics card has one, too.
    """
    if (root / "dev/rknpu").exists() or (root / "sys/class/misc/rknpu").exists():
        return root / "dev/rknpu"
    for entry in sorted(root.glob("sys/class/drm/render*")):
        try:
            driver = (entry / "device/driver").readlink()
        except OSError:
            continue
        if driver.name.lower() == "rknpu":
            return root / "dev/dri" / entry.name
    return None


def find_closed_nodes(root: Path = _ROOT) -> list[str]:
    """Return a sentence for each way to open nodes that the runtime may need and this user cannot.

    Each names the nodes, and what gives access to them. Empty on a machine without an NPU, where
    memory heaps that only root can open are usual. The check is that of the system (`access`),
    which leaves out the device rules of a container's cgroup.
    """
    npu = find_npu_node(root)
    if npu is None:
        return []
    nodes = [(npu, _MISC if npu.name == "rknpu" else _RENDER)]
    nodes += [(node, _HEAP) for node in _find_heaps(root)]
    is_container = any((root / mark).exists() for mark in _CONTAINER_MARKS)
    paths: dict[str, list[str]] = {}
    for node, kind in nodes:
        path = f"/{node.relative_to(root)}"
        if (remedy := _find_remedy(node, path, kind, is_container)) is not None:
            paths.setdefault(remedy, []).append(path)
    return [f"{', '.join(each)} {remedy}" for remedy, each in paths.items()]


def describe_closed_nodes(root: Path = _ROOT) -> str:
    """Return what `find_closed_nodes` does as the end of an error's sentence; empty without any."""
    return "".join(f"; {sentence}" for sentence in find_closed_nodes(root))


def _find_heaps(root: Path) -> Iterator[Path]:
    """Yield the nodes of the heaps; a kernel that has them lists them in /sys."""
    names = {each.name for folder in (_HEAPS, "dev/dma_heap") for each in (root / folder).glob("*")}
    yield from (root / "dev/dma_heap" / name for name in sorted(names))


def _find_remedy(node: Path, path: str, kind: _Kind, is_container: bool) -> str | None:
    """Return the problem with a node and its remedy, to follow the node's name; None without one.

    A node that is missing outside a container is no problem: which heaps a driver needs differs.
    """
    try:
        status = node.stat()
    except OSError:
        device = "/dev/dma_heap" if kind is _HEAP else path
        return (
            f"cannot be opened in this container: start it with --device {device}"
            if is_container
            else None
        )
    if os.access(node, _READ_WRITE):
        return None
    # Without a rule, no group but root's may open the node.
    has_group = status.st_mode & _GROUP_READ_WRITE == _GROUP_READ_WRITE and status.st_gid != 0
    group = _name_group(status.st_gid) if has_group else kind.group
    steps = [] if has_group else [f"put {kind.rule} into {_RULES_FILE}, restart the board"]
    if is_container:
        number = status.st_gid if has_group else f"the number of the group {group}"
        steps.append(f"start the container with --group-add {number}")
    else:
        steps.append(f"add the user to the group {group} (sudo usermod -aG {group} USER)")
    return f"cannot be opened by this user: {', and '.join(steps)}"


def _name_group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
