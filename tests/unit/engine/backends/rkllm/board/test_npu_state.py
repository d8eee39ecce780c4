"""The NPU's load, clock and temperature are read from files like those of boards."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.rkllm.board.npu_state import NpuState, NpuWatch, read_npu


def write(root: Path, **files: str) -> None:
    """Write files; `__` in a name stands for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """An RK3588 with three cores."""
    write(
        tmp_path,
        sys__kernel__debug__rknpu__load="NPU load:  Core0: 65%, Core1:  7%, Core2:  0%,\n",
        sys__class__thermal__thermal_zone0__type="soc-thermal\n",
        sys__class__thermal__thermal_zone0__temp="41000\n",
        sys__class__thermal__thermal_zone6__type="npu-thermal\n",
        sys__class__thermal__thermal_zone6__temp="49153\n",
    )
    clock = tmp_path / "sys/class/devfreq/fdab0000.npu/cur_freq"
    clock.parent.mkdir(parents=True)
    clock.write_text("1000000000\n")
    return tmp_path


def test_read_npu_reads_all_three(board: Path) -> None:
    assert read_npu(board) == NpuState((0.65, 0.07, 0.0), 1e9, 49.153)


def test_read_npu_reads_a_single_load(tmp_path: Path) -> None:
    write(tmp_path, sys__kernel__debug__rknpu__load="NPU load:  28%\n")
    assert read_npu(tmp_path) == NpuState((0.28,))


def test_read_npu_knows_nothing_without_the_files(tmp_path: Path) -> None:
    assert read_npu(tmp_path) == NpuState()


def test_read_npu_ignores_a_damaged_number(tmp_path: Path) -> None:
    write(
        tmp_path,
        sys__class__thermal__thermal_zone0__type="npu_thermal\n",
        sys__class__thermal__thermal_zone0__temp="hot\n",
    )
    assert read_npu(tmp_path) == NpuState()


def test_watch_keeps_the_highest_values(board: Path) -> None:
    watch = NpuWatch(board)
    with watch.watching():
        pass
    write(board, sys__kernel__debug__rknpu__load="NPU load:  Core0: 10%, Core1: 90%, Core2:  0%,")
    with watch.watching():
        pass
    assert watch.highest == NpuState((0.65, 0.9, 0.0), 1e9, 49.153)
