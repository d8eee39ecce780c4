"""Governors, CPUs that are off and small CPUs are read from a tree that stands for /."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.rkllm.board import clocks, diagnostics

CPUS = "sys/devices/system/cpu"
DEVFREQ = "sys/class/devfreq"
NPU = f"{DEVFREQ}/fdab0000.npu/governor"


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """An RK3588 with four small and four big CPUs, all clocks as its vendor ships them."""
    write(tmp_path, "proc/device-tree/compatible", "radxa,rock-5b\0rockchip,rk3588\0")
    write(tmp_path, "proc/device-tree/model", "Radxa ROCK 5B\0")
    write(tmp_path, "sys/module/rknpu/version", "0.9.8")
    for cpu in range(8):
        write(tmp_path, f"{CPUS}/cpu{cpu}/cpu_capacity", "530" if cpu < 4 else "1024")
    for policy, related in ((0, "0 1 2 3"), (4, "4 5"), (6, "6 7")):
        write(tmp_path, f"{CPUS}/cpufreq/policy{policy}/related_cpus", related)
    write(tmp_path, f"{CPUS}/offline", "")
    set_governors(tmp_path, cpus="ondemand", npu="rknpu_ondemand", memory="dmc_ondemand")
    return tmp_path


def set_governors(root: Path, *, cpus: str, npu: str, memory: str | None) -> None:
    for policy in (0, 4, 6):
        write(root, f"{CPUS}/cpufreq/policy{policy}/scaling_governor", cpus)
    write(root, NPU, npu)
    if memory is not None:
        write(root, f"{DEVFREQ}/dmc/governor", memory)


def test_find_speed_warning_is_one_line_about_all_that_costs_speed(board: Path) -> None:
    write(board, f"{CPUS}/offline", "5")
    assert clocks.find_speed_warning(0b1111_1111, board) == (
        "this board is slower than it could be, by governors that are not performance: CPUs 4-7 "
        "ondemand, NPU rknpu_ondemand, memory dmc_ondemand; CPUs that are off: 5; small CPUs in "
        "RKLLM_CPU_MASK: 0-3"
    )


@pytest.mark.parametrize("governor", ["performance", "userspace"])
def test_find_speed_warning_returns_none_for_fixed_clocks(board: Path, governor: str) -> None:
    set_governors(board, cpus=governor, npu=governor, memory=governor)
    assert clocks.find_speed_warning(0, board) is None
    assert clocks.find_speed_warning(0b1111_0000, board) is None
    # Small CPUs are not used for the model.
    write(board, f"{CPUS}/cpufreq/policy0/scaling_governor", "ondemand")
    assert clocks.find_speed_warning(0, board) is None


@pytest.mark.parametrize(("chip", "is_measured"), [("rk3588s", True), ("rk3562", False)])
def test_find_speed_warning_names_a_missing_dmc_where_its_effect_was_measured(
    board: Path, chip: str, is_measured: bool
) -> None:
    write(board, "proc/device-tree/compatible", f"vendor,board\0rockchip,{chip}\0")
    set_governors(board, cpus="performance", npu="performance", memory=None)
    (board / DEVFREQ / "dmc/governor").unlink()
    (board / DEVFREQ / "dmc").rmdir()
    warning = clocks.find_speed_warning(0, board)
    assert (warning is not None) == is_measured
    if warning is not None:
        assert warning.endswith(
            "by a kernel without /sys/class/devfreq/dmc, which scales the memory's clock"
        )


def test_find_speed_warning_leaves_other_machines_alone(tmp_path: Path) -> None:
    write(tmp_path, f"{CPUS}/cpufreq/policy0/related_cpus", "0 1")
    write(tmp_path, f"{CPUS}/cpufreq/policy0/scaling_governor", "powersave")
    assert clocks.find_speed_warning(3, tmp_path) is None
    assert dict(clocks.report_clocks(tmp_path)) == {"governors": "CPUs 0-1 powersave"}


def test_doctor_reports_the_board(board: Path) -> None:
    write(board, f"{CPUS}/offline", "2-3,5")
    findings = dict(diagnostics.report_driver(0b11, board))
    assert findings["governors"] == (
        "CPUs 0-3 ondemand, CPUs 4-7 ondemand, NPU rknpu_ondemand, memory dmc_ondemand"
    )
    assert findings["CPUs that are off"] == "2-3,5"
    assert findings["CPUs"].startswith("RKLLM_CPU_MASK enables 2 CPUs, and a model")
    assert findings["speed"].endswith("small CPUs in RKLLM_CPU_MASK: 0-1")
    assert "access" not in findings


@pytest.mark.parametrize(
    ("text", "cpus"), [("", ()), ("0-2,7", (0, 1, 2, 7)), ("4", (4,)), ("a-b", ()), ("1-", (1,))]
)
def test_parse_cpus_reads_the_lists_of_the_kernel(text: str, cpus: tuple[int, ...]) -> None:
    assert clocks.parse_cpus(text) == cpus


def test_format_cpus_returns_the_form_of_the_kernel() -> None:
    assert clocks.format_cpus([7, 0, 1, 2]) == "0-2,7"
