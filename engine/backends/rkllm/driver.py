"""Detect the NPU's kernel driver and its version."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelLoadFailed

# The runtime needs functions that drivers before 0.9.6 lack; the manual of 1.3.0 requires 0.9.8.
_RECOMMENDED_VERSION = (0, 9, 8)
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Driver:
    """The state of this machine's NPU driver; `board` is None if it is no Rockchip board."""

    board: str | None
    version: str | None
    present: bool


def read_driver(root: Path = _ROOT) -> Driver:
    """Read the driver's state from the kernel; most of it needs root and a mounted debugfs."""
    compatible = _read(root / "proc/device-tree/compatible")
    board = None
    if "rockchip" in compatible:
        board = _read(root / "proc/device-tree/model").strip("\0\n ") or "a Rockchip board"
    version = ""
    for path in ("sys/kernel/debug/rknpu/version", "proc/debug/rknpu/version"):
        version = version or _read(root / path)
    version = version or _read(root / "sys/module/rknpu/version")
    match = _VERSION.search(version)
    present = bool(version) or any(
        (root / path).exists()
        for path in ("sys/module/rknpu", "dev/rknpu", "sys/bus/platform/drivers/RKNPU")
    )
    return Driver(board, ".".join(match.groups()) if match else None, present)


def check_driver(root: Path = _ROOT) -> None:
    """Raise ModelLoadFailed on a Rockchip board whose kernel has no NPU driver.

    Without the driver the runtime waits forever instead of reporting an error.
    """
    driver = read_driver(root)
    if driver.board is not None and not driver.present:
        raise ModelLoadFailed(
            f"{driver.board} runs a kernel without the NPU driver (rknpu): install a vendor image "
            "or kernel that has it, 0.9.8 or newer"
        )


def describe_driver(root: Path = _ROOT) -> str:
    """Return one sentence about the driver, for messages and reports."""
    driver = read_driver(root)
    if not driver.present:
        return "no NPU driver was found on this machine"
    if driver.version is None:
        return "the NPU driver is present; only root can read its version"
    is_old = tuple(map(int, driver.version.split("."))) < _RECOMMENDED_VERSION
    return f"the NPU driver is {driver.version}" + (
        ", 0.9.8 or newer is recommended" if is_old else ""
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
