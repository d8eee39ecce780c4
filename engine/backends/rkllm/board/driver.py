"""Detect the board's chip, and the NPU's kernel driver and its version."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelLoadFailed

# The runtime needs functions that drivers before 0.9.6 lack; the manual of 1.3.0 requires 0.9.8.
_RECOMMENDED_VERSION = (0, 9, 8)
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_CHIP = re.compile(r"rockchip,((?:rk|rv)\d{4}\w*)")
# Chips that this runtime does not support, and the reason with what to do.
_UNSUPPORTED_CHIPS = {
    **dict.fromkeys(
        ("rk3566", "rk3568"),
        "has an NPU that RKLLM does not support: use a GGUF model with ENGINE=llamacpp",
    ),
    **dict.fromkeys(
        ("rk1820", "rk1828", "rk3572"),
        "needs another SDK of Rockchip's (rknn3), which is not supported: use a GGUF model with "
        "ENGINE=llamacpp",
    ),
}
# The most NPU cores that a model can be built for (manual 3.1.3); 1 on other chips.
_NPU_CORES = {"rk3588": 3, "rk3588s": 3, "rk3576": 2}
# Docker hides the first one; deploy/compose.yaml mounts the tree as the second.
_DEVICE_TREES = ("proc/device-tree", "device-tree")
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Driver:
    """The state of this machine's NPU driver; `board` is set on a Rockchip board only.

    `chip` is its name in small letters, such as "rk3588"; empty if it is not known.
    """

    board: str | None
    version: str | None
    present: bool
    chip: str = ""


def read_driver(root: Path = _ROOT) -> Driver:
    """Read the driver's state from the kernel; most of it needs root and a mounted debugfs."""
    compatible = _read_device_tree(root, "compatible")
    board, chip = None, _CHIP.search(compatible)
    if "rockchip" in compatible:
        board = _read_device_tree(root, "model").strip("\0\n ") or "a Rockchip board"
    version = ""
    for path in ("sys/kernel/debug/rknpu/version", "proc/debug/rknpu/version"):
        version = version or _read(root / path)
    version = version or _read(root / "sys/module/rknpu/version")
    match = _VERSION.search(version)
    present = bool(version) or any(
        (root / path).exists()
        for path in ("sys/module/rknpu", "dev/rknpu", "sys/bus/platform/drivers/RKNPU")
    )
    version_text = ".".join(match.groups()) if match else None
    return Driver(board, version_text, present, chip[1] if chip else "")


def check_driver(root: Path = _ROOT) -> None:
    """Raise ModelLoadFailed on a board that has no NPU for RKLLM, or no driver for it.

    Without the driver the runtime waits forever instead of reporting an error.
    """
    driver = read_driver(root)
    if (reason := _UNSUPPORTED_CHIPS.get(driver.chip)) is not None:
        raise ModelLoadFailed(f"{driver.board}: its chip, {driver.chip.upper()}, {reason}")
    if driver.board is not None and not driver.present:
        raise ModelLoadFailed(
            f"{driver.board} runs a kernel without the NPU driver (rknpu): install a vendor image "
            "or kernel that has it, 0.9.8 or newer"
        )


def find_cpu_warning(cpu_mask: int, npu_cores: int, available: int | None = None) -> str | None:
    """Return a warning if the runtime may use fewer CPUs than the model has NPU cores.

    The library refuses such a load: `The number of enabled CPUs must be greater than or equal to
    the number of NPU cores`.

    Args:
        cpu_mask: RKLLM_CPU_MASK, 0 if the runtime chooses.
        npu_cores: how many NPU cores the model was built for.
        available: how many CPUs this process may use, None to count them.
    """
    cpus = cpu_mask.bit_count() or available or len(os.sched_getaffinity(0))
    if cpus >= npu_cores:
        return None
    setting = "RKLLM_CPU_MASK enables" if cpu_mask else "this process has"
    return (
        f"{setting} {cpus} CPU{'' if cpus == 1 else 's'}, and a model that was built for "
        f"{npu_cores} NPU cores needs {npu_cores}"
    )


def find_npu_cores(root: Path = _ROOT) -> int:
    """Return how many NPU cores a model for this chip can have at most; 1 if that is not known."""
    return _NPU_CORES.get(read_driver(root).chip, 1)


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


def _read_device_tree(root: Path, name: str) -> str:
    return next(filter(None, (_read(root / tree / name) for tree in _DEVICE_TREES)), "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
