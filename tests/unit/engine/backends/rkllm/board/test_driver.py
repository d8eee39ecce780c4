"""The NPU driver's state, read from fake root folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.rkllm.board import driver
from engine.backends.rkllm.board.driver import Driver
from engine.errors import ModelLoadFailed

BOARD = {
    "proc/device-tree/compatible": "radxa,rock-5b\0rockchip,rk3588\0",
    "proc/device-tree/model": "Radxa ROCK 5B\0",
}
VERSION = {"sys/kernel/debug/rknpu/version": "RKNPU driver: v0.9.8\n"}


def root_of(folder: Path, *parts: dict[str, str]) -> Path:
    for part in parts:
        for name, content in part.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
    return folder


def test_board_with_a_driver(tmp_path: Path) -> None:
    root = root_of(tmp_path, BOARD, VERSION)
    assert driver.read_driver(root) == Driver("Radxa ROCK 5B", "0.9.8", True, "rk3588")
    driver.check_driver(root)
    assert driver.describe_driver(root) == "the NPU driver is 0.9.8"


def test_board_is_read_from_the_mount_of_a_container(tmp_path: Path) -> None:
    # In a container /proc/device-tree leads to a folder that is masked.
    (tmp_path / "sys/firmware").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/device-tree").symlink_to("../sys/firmware/devicetree/base")
    mount = {name.replace("proc/", ""): content for name, content in BOARD.items()}
    root = root_of(tmp_path, mount, VERSION)
    assert driver.read_driver(root) == Driver("Radxa ROCK 5B", "0.9.8", True, "rk3588")


@pytest.mark.parametrize(
    ("name", "content", "version"),
    [
        ("sys/kernel/debug/rknpu/version", "RKNPU driver: v0.9.8\n", "0.9.8"),
        ("proc/debug/rknpu/version", "RKNPU driver: v0.9.6", "0.9.6"),
        ("sys/module/rknpu/version", "0.10.0\n", "0.10.0"),
    ],
)
def test_version_is_read_from_three_files(
    tmp_path: Path, name: str, content: str, version: str
) -> None:
    state = driver.read_driver(root_of(tmp_path, BOARD, {name: content}))
    assert (state.version, state.present) == (version, True)


@pytest.mark.parametrize(
    ("version", "old"),
    [("0.9.7", True), ("0.8.2", True), ("0.9.8", False), ("0.9.10", False), ("0.10.0", False)],
)
def test_old_driver_is_reported(tmp_path: Path, version: str, old: bool) -> None:
    root = root_of(tmp_path, BOARD, {"sys/module/rknpu/version": version})
    description = driver.describe_driver(root)
    assert description.startswith(f"the NPU driver is {version}")
    assert description.endswith(", 0.9.8 or newer is recommended") == old
    # The load is attempted anyway.
    driver.check_driver(root)


@pytest.mark.parametrize(
    "name", ["sys/module/rknpu/x", "dev/rknpu", "sys/bus/platform/drivers/RKNPU/x"]
)
def test_driver_with_unreadable_version(tmp_path: Path, name: str) -> None:
    root = root_of(tmp_path, BOARD, {name: ""})
    assert driver.read_driver(root) == Driver("Radxa ROCK 5B", None, True, "rk3588")
    driver.check_driver(root)
    assert (
        driver.describe_driver(root) == "the NPU driver is present; only root can read its version"
    )


def test_invalid_driver_version(tmp_path: Path) -> None:
    root = root_of(tmp_path, {"sys/module/rknpu/version": "unknown\n"})
    assert driver.read_driver(root) == Driver(None, None, True)


def test_board_without_a_driver_is_refused(tmp_path: Path) -> None:
    # rkllama#27: the runtime would wait forever.
    root = root_of(tmp_path, BOARD)
    with pytest.raises(ModelLoadFailed) as caught:
        driver.check_driver(root)
    assert caught.value.message == (
        "Radxa ROCK 5B runs a kernel without the NPU driver (rknpu): install a vendor image or "
        "kernel that has it, 0.9.8 or newer"
    )
    assert driver.describe_driver(root) == "no NPU driver was found on this machine"


def test_board_without_a_name(tmp_path: Path) -> None:
    root = root_of(tmp_path, {"proc/device-tree/compatible": "rockchip,rk3576\0"})
    with pytest.raises(ModelLoadFailed, match=r"^a Rockchip board runs a kernel without"):
        driver.check_driver(root)


@pytest.mark.parametrize("compatible", [None, "raspberrypi,5-model-b\0brcm,bcm2712\0"])
def test_another_machine_is_not_refused(tmp_path: Path, compatible: str | None) -> None:
    # The library may be a fake one there, which is allowed.
    if compatible is not None:
        root_of(tmp_path, {"proc/device-tree/compatible": compatible})
    assert driver.read_driver(tmp_path) == Driver(None, None, False)
    driver.check_driver(tmp_path)
    assert driver.describe_driver(tmp_path) == "no NPU driver was found on this machine"


def test_board_name_with_invalid_characters(tmp_path: Path) -> None:
    root = root_of(tmp_path, BOARD, VERSION)
    (root / "proc/device-tree/model").write_bytes(b"\xff\xfeboard\0")
    assert driver.read_driver(root).board == "��board"


@pytest.mark.parametrize(
    ("chip", "reason"),
    [
        ("rk3566", "its chip, RK3566, has an NPU that RKLLM does not support: use a GGUF"),
        ("rk3568", "its chip, RK3568, has an NPU that RKLLM does not support: use a GGUF"),
        ("rk1828", "its chip, RK1828, needs another SDK of Rockchip's (rknn3)"),
        ("rk3572", "its chip, RK3572, needs another SDK of Rockchip's (rknn3)"),
    ],
)
def test_chip_without_a_runtime_is_refused(tmp_path: Path, chip: str, reason: str) -> None:
    # rknn-llm#416
    board = {
        "proc/device-tree/compatible": f"radxa,rock-3a\0rockchip,{chip}\0",
        "proc/device-tree/model": "Radxa ROCK 3A\0",
    }
    with pytest.raises(ModelLoadFailed) as caught:
        driver.check_driver(root_of(tmp_path, board, VERSION))
    assert caught.value.message.startswith(f"Radxa ROCK 3A: {reason}")
    assert "ENGINE=llamacpp" in caught.value.message


@pytest.mark.parametrize(
    ("mask", "npu_cores", "available", "warning"),
    [
        (0b1111_0000, 3, 8, None),
        (0b111, 3, 8, None),
        # Boards were seen to work with two CPUs and a model for two cores (RK3576, 1.2.3).
        (0b1100_0000, 2, 8, None),
        (0, 1, 1, None),
        (0b11, 3, 8, "RKLLM_CPU_MASK enables 2 CPUs, and a model that was built for 3 NPU cores "),
        (0, 2, 1, "this process has 1 CPU, and a model that was built for 2 NPU cores needs 2"),
    ],
)
def test_fewer_cpus_than_npu_cores_cause_a_warning(
    mask: int, npu_cores: int, available: int, warning: str | None
) -> None:
    text = driver.find_cpu_warning(mask, npu_cores, available)
    assert text == warning if warning is None else text is not None and text.startswith(warning)


@pytest.mark.parametrize(("chip", "cores"), [("rk3588", 3), ("rk3576", 2), ("rk3562", 1)])
def test_find_npu_cores_goes_by_the_chip(tmp_path: Path, chip: str, cores: int) -> None:
    board = {"proc/device-tree/compatible": f"vendor,board\0rockchip,{chip}\0"}
    assert driver.find_npu_cores(root_of(tmp_path, board)) == cores
