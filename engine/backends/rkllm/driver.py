"""The NPU's kernel driver: whether it is there, and which version."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelLoadFailed

# Since 0.9.6 the runtime needs what older drivers lack; the SDK's manual of 1.3.0 asks for 0.9.8.
_RECOMMENDED_VERSION = (0, 9, 8)
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Driver:
    """What this machine says of its NPU; `board` is None where it is no Rockchip board."""

    board: str | None
    version: str | None
    present: bool


def read_driver(root: Path = _ROOT) -> Driver:
    """Return what there is to see; most of it only to root, where debugfs is mounted."""
    compatible = _read(root / "proc/device-tree/compatible")
    board = None
    if "rockchip" in compatible:
        board = _read(root / "proc/device-tree/model").strip("\0\n ") or "a Rockchip board"
    version = ""
    for path in ("sys/kernel/debug/rknpu/version", "proc/debug/rknpu/version"):
        version = version or _read(root / path)
    version = version or _read(root / "sys/module/rknpu/version")
    found = _VERSION.search(version)
    present = bool(version) or any(
        (root / path).exists()
        for path in ("sys/module/rknpu", "dev/rknpu", "sys/bus/platform/drivers/RKNPU")
    )
    return Driver(board, ".".join(found.groups()) if found else None, present)


def check_driver(root: Path = _ROOT) -> None:
    """Raise ModelLoadFailed on a Rockchip board whose kernel has no NPU driver.

    There the runtime does not fail but waits, so nothing else would say it.
    """
    found = read_driver(root)
    if found.board is not None and not found.present:
        raise ModelLoadFailed(
            f"{found.board} runs a kernel without the NPU driver (rknpu): install a vendor image "
            "or kernel that has it, 0.9.8 or newer"
        )


def describe_driver(root: Path = _ROOT) -> str:
    """Return the driver in words, for messages and reports."""
    found = read_driver(root)
    if not found.present:
        return "no NPU driver was found on this machine"
    if found.version is None:
        return "the NPU driver is there, its version only root may see"
    old = tuple(map(int, found.version.split("."))) < _RECOMMENDED_VERSION
    return f"the NPU driver is {found.version}" + (", 0.9.8 is asked for" if old else "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
