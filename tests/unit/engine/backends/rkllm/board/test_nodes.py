"""Nodes that this user cannot open are named with the remedy, in a tree that stands for /."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.backends.rkllm.board import nodes

RENDER_RULE = 'SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="render", MODE="0660"'
HEAP_RULE = 'SUBSYSTEM=="dma_heap", GROUP="video", MODE="0660"'
RULES = "/etc/udev/rules.d/99-rknpu.rules"


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An RK3588, where renderD128 is the graphics card; all may open each node."""
    for name, driver in (("renderD128", "panthor"), ("renderD129", "RKNPU")):
        device = tmp_path / "sys/class/drm" / name / "device"
        device.mkdir(parents=True)
        (device / "driver").symlink_to(f"../../../bus/platform/drivers/{driver}")
        add_node(tmp_path, f"dri/{name}")
    add_node(tmp_path, "dma_heap/system")
    (tmp_path / "sys/class/dma_heap/system").mkdir(parents=True)
    # Tests may run as root, which may open all. The mode for others stands for this user's.
    monkeypatch.setattr(os, "access", lambda path, mode: os.stat(path).st_mode & mode == mode)
    return tmp_path


def add_node(root: Path, name: str, mode: int = 0o666) -> Path:
    node = root / "dev" / name
    node.parent.mkdir(parents=True, exist_ok=True)
    node.touch()
    node.chmod(mode)
    return node


def set_owner(monkeypatch: pytest.MonkeyPatch, group: int) -> None:
    """Let all files belong to a group: only root may change it."""
    stat = Path.stat

    def stat_with_group(path: Path, **options: bool) -> os.stat_result:
        fields = list(stat(path, **options))
        fields[5] = group
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "stat", stat_with_group)


def test_find_npu_node_goes_by_the_driver_and_not_by_the_number(board: Path) -> None:
    assert nodes.find_npu_node(board) == board / "dev/dri/renderD129"
    add_node(board, "rknpu")
    assert nodes.find_npu_node(board) == board / "dev/rknpu"


def test_find_closed_nodes_returns_nothing_if_all_can_be_opened(board: Path) -> None:
    assert nodes.find_closed_nodes(board) == []
    assert nodes.describe_closed_nodes(board) == ""
    # The graphics card is not needed.
    add_node(board, "dri/renderD128", 0o600)
    assert nodes.find_closed_nodes(board) == []


def test_find_closed_nodes_leaves_other_machines_alone(tmp_path: Path) -> None:
    add_node(tmp_path, "dri/renderD128", 0o600)
    add_node(tmp_path, "dma_heap/system", 0o600)
    assert nodes.find_closed_nodes(tmp_path) == []


def test_find_closed_nodes_names_the_rule_for_nodes_of_root(
    board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_owner(monkeypatch, 0)
    for name in ("dri/renderD129", "dma_heap/system", "dma_heap/cma"):
        add_node(board, name, 0o600)
    assert nodes.find_closed_nodes(board) == [
        f"/dev/dri/renderD129 cannot be opened by this user: put {RENDER_RULE} into {RULES}, "
        "restart the board, and add the user to the group render (sudo usermod -aG render USER)",
        "/dev/dma_heap/cma, /dev/dma_heap/system cannot be opened by this user: put "
        f"{HEAP_RULE} into {RULES}, restart the board, and add the user to the group video (sudo "
        "usermod -aG video USER)",
    ]
    # Nodes of older kernels have another rule.
    add_node(board, "rknpu", 0o600)
    first, _ = nodes.find_closed_nodes(board)
    assert first.startswith('/dev/rknpu cannot be opened by this user: put KERNEL=="rknpu", GROUP=')
    assert nodes.describe_closed_nodes(board).startswith("; /dev/rknpu cannot be opened")


def test_find_closed_nodes_names_the_group_that_the_node_has(
    board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_owner(monkeypatch, 987_654)
    add_node(board, "dri/renderD129", 0o660)
    assert nodes.find_closed_nodes(board) == [
        "/dev/dri/renderD129 cannot be opened by this user: add the user to the group 987654 "
        "(sudo usermod -aG 987654 USER)"
    ]


def test_find_closed_nodes_names_the_option_of_a_container(
    board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_owner(monkeypatch, 987_654)
    (board / ".dockerenv").touch()
    (board / "dev/dma_heap/system").unlink()
    add_node(board, "dri/renderD129", 0o660)
    assert nodes.find_closed_nodes(board) == [
        "/dev/dri/renderD129 cannot be opened by this user: start the container with "
        "--group-add 987654",
        "/dev/dma_heap/system cannot be opened in this container: start it with --device "
        "/dev/dma_heap",
    ]
    (board / "dev/dri/renderD129").unlink()
    first, _ = nodes.find_closed_nodes(board)
    assert first.endswith(
        "cannot be opened in this container: start it with --device /dev/dri/renderD129"
    )
