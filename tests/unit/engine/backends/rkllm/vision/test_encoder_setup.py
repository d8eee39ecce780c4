"""A vision encoder that cannot be set up: the error names the setting and what to do."""

from __future__ import annotations

import logging
import platform
import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from engine.backends.rkllm.vision.cores import VisionCores, check_cores, find_core_mask
from engine.backends.rkllm.vision.encoder import VisionEncoder
from engine.backends.rkllm.vision.setup_advice import (
    describe_missing_package,
    find_missing_part,
    find_printed_advice,
)
from engine.errors import ModelLoadFailed
from tests import fake_rknnlite

# Lines of public logs: rknn-toolkit2#281, #448, #294, rknn-toolkit#454, rknn_model_zoo#231.
OLD_LIBRARY = (
    "I RKNN: [14:34:00.921] RKNN Runtime Information: librknnrt version: 1.4.0 (a10f100eb)",
    "E RKNN: [14:34:00.922] Invalid RKNN model version 6",
    "Exception: RKNN init failed. error code: RKNN_ERR_FAIL",
)
DYNAMIC_RANGE = (
    "W Query dynamic range failed. Ret code: RKNN_ERR_MODEL_INVALID. (If it is a static shape RKNN "
    "model, please ignore the above warning message.)"
)
NOT_SUBMITTED = "E RKNN: [09:18:11.878] failed to submit!, op id: 1, op name: Conv"


@pytest.fixture
def rknn_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    fake_rknnlite.install(monkeypatch)
    monkeypatch.setenv("FAKE_RKNN_LOG", str(tmp_path / "rknn.log"))
    return tmp_path / "rknn.log"


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """Return a root folder of a board on which nothing is missing."""
    for name in ("proc/device-tree/compatible", "usr/lib/librknnrt.so"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    return tmp_path


def set_chip(board: Path, chip: str, driver: str | None = None) -> None:
    (board / "proc/device-tree/compatible").write_text(f"radxa,board\0rockchip,{chip}\0")
    if driver is not None:
        version = board / "sys/module/rknpu/version"
        version.parent.mkdir(parents=True)
        version.write_text(driver)


def load(tmp_path: Path, cores: VisionCores = "auto", **options: Any) -> VisionEncoder:
    path = fake_rknnlite.write_encoder(tmp_path / "vision.rknn", **options)
    return VisionEncoder(path, 28, cores=cores)


# ---- packages ----


@pytest.mark.parametrize(
    ("machine", "version", "remedy"),
    [
        ("x86_64", (3, 12), "has packages for aarch64 only; this machine is x86_64"),
        ("aarch64", (3, 13), "has packages for Pythons up to 3.12; this is "),
        ("aarch64", (3, 11), "is not installed: `make vision` or `pip install rknn-toolkit-lite2`"),
    ],
)
def test_missing_toolkit_is_explained_by_machine_and_python(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    version: tuple[int, int],
    remedy: str,
) -> None:
    monkeypatch.setitem(sys.modules, "rknnlite.api", None)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "version_info", (*version, 0))
    with pytest.raises(ModelLoadFailed) as caught:
        load(tmp_path)
    prefix = "RKLLM_VISION: a vision encoder needs rknn-toolkit-lite2, which "
    assert caught.value.message.startswith(prefix + remedy)


def test_missing_package_of_the_toolkit_is_named() -> None:
    assert "needs the package ruamel, which is not" in describe_missing_package("ruamel.yaml")


def test_missing_pillow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ModelLoadFailed, match=r"^RKLLM_VISION: .*`pip install pillow`"):
        load(tmp_path)


# ---- what the toolkit prints ----


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("Exception: Can not find dynamic library on RK3588!", "set LIBRKNNRT_PATH to its path"),
        ("Exception: Unsupported run platform: Linux aarch64", "does not know the chip in /proc/"),
        ("E RKNN: failed to open rknpu module", "the NPU's node cannot be opened"),
        (
            "RKNN set core mask failed. error code: RKNN_ERR_FAIL",
            "RKLLM_VISION_CORES is 0_1, which",
        ),
        (NOT_SUBMITTED, "drivers 0.9.2 and 0.9.3 set RKLLM_VISION_CORES=0"),
        ("E RKNN: parseRKNN from buffer: Invalid RKNN format!", "the installed librknnrt.so does"),
    ],
)
def test_printed_line_leads_to_advice(board: Path, line: str, advice: str) -> None:
    printed = find_printed_advice(["W rknn-toolkit-lite2 version: 2.5.0", line], "0_1", board)
    assert advice in str(printed)


def test_warning_of_a_load_that_succeeds_is_no_advice(board: Path) -> None:
    assert find_printed_advice([DYNAMIC_RANGE], "auto", board) is None


def test_advice_about_versions_names_those_that_were_printed(board: Path) -> None:
    assert str(find_printed_advice(OLD_LIBRARY, "auto", board)).startswith(
        "librknnrt.so 1.4.0 does not take this file: install librknnrt.so of the version of the "
        "toolkit that made the file"
    )
    line = "I RKNN: RKNN Model Information, version: 6, toolkit version: 2.3.2(compiler version: x)"
    advice = find_printed_advice([*OLD_LIBRARY, line], "auto", board)
    assert "install librknnrt.so of version 2.3.2, or" in str(advice)


def test_failed_load_has_the_printed_reason_and_the_advice(tmp_path: Path, rknn_log: Path) -> None:
    with pytest.raises(ModelLoadFailed) as caught:
        load(tmp_path, init_code=-1, prints=OLD_LIBRARY)
    assert re.fullmatch(
        r"RKLLM_VISION: \S+vision.rknn was not loaded: code -1 \(the library said: E RKNN: "
        r"\[14:34:00\.922\] Invalid RKNN model version 6\): librknnrt.so 1.4.0 does not take .*",
        caught.value.message,
    )


def test_failed_trial_is_explained_by_what_was_printed(tmp_path: Path, rknn_log: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"said: E RKNN.*set RKLLM_VISION_CORES=0"):
        load(tmp_path, size=56, prints=[NOT_SUBMITTED])


# ---- files ----


def test_missing_part_is_none_on_a_complete_board(board: Path) -> None:
    assert find_missing_part(board) is None


def test_missing_part_is_the_device_tree_that_docker_hides(board: Path) -> None:
    (board / "proc/device-tree/compatible").unlink()
    advice = find_missing_part(board)
    assert "/proc/device-tree/compatible, which is not there" in str(advice)
    assert "--security-opt systempaths=unconfined" in str(advice)


def test_missing_part_is_the_library(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (board / "usr/lib/librknnrt.so").unlink()
    assert str(find_missing_part(board)).startswith("librknnrt.so is not in /usr/lib: put it there")
    monkeypatch.setenv("LIBRKNNRT_PATH", str(board / "librknnrt.so"))
    assert str(find_missing_part(board)).startswith(
        f"LIBRKNNRT_PATH names {board}/librknnrt.so, which does not exist"
    )
    (board / "librknnrt.so").touch()
    assert find_missing_part(board) is None


# ---- cores ----


@pytest.mark.parametrize(
    ("cores", "call"),
    [("auto", "init_runtime"), ("0", "init_runtime:1"), ("0_1_2", "init_runtime:7")],
)
def test_encoder_runs_on_its_cores(
    tmp_path: Path, rknn_log: Path, cores: VisionCores, call: str
) -> None:
    load(tmp_path, cores)
    assert fake_rknnlite.read_names(rknn_log)[1] == call


def test_core_mask_exists_for_each_value_but_auto(rknn_log: Path) -> None:
    from rknnlite.api import RKNNLite

    masks = [find_core_mask(cores, RKNNLite) for cores in get_args(VisionCores) if cores != "auto"]
    assert masks == [1, 2, 4, 3, 7]
    with pytest.raises(ModelLoadFailed, match=r"^RKLLM_VISION_CORES=0_1: .* has no NPU_CORE_0_1$"):
        find_core_mask("0_1", object())


@pytest.mark.parametrize(
    ("chip", "cores", "reason"),
    [
        ("rk3562", "0", "must be auto on an RK3562, which has one NPU core; it is 0"),
        ("rk3576", "0_1_2", "=0_1_2 names a core that the RK3576 does not have: its 2 NPU cores"),
        ("rk3576", "2", "=2 names a core that the RK3576 does not have"),
    ],
)
def test_cores_that_the_chip_lacks_are_refused(
    board: Path, chip: str, cores: VisionCores, reason: str
) -> None:
    set_chip(board, chip)
    with pytest.raises(ModelLoadFailed, match=rf"^RKLLM_VISION_CORES ?{reason}"):
        check_cores(cores, board)


@pytest.mark.parametrize(
    ("driver", "cores", "is_warned"),
    [("0.9.3", "auto", True), ("0.9.3", "0", False), ("0.9.8", "0_1_2", False)],
)
def test_cores_that_the_driver_cannot_use_are_warned_of(
    board: Path,
    driver: str,
    cores: VisionCores,
    is_warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_chip(board, "rk3588", driver)
    with caplog.at_level(logging.WARNING):
        check_cores(cores, board)
    assert ("set RKLLM_VISION_CORES=0" in caplog.text) == is_warned
