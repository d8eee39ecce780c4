"""The doctor's findings about RKLLM before a model is loaded: the board and the library."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.backends.options import RkllmOptions
from engine.backends.rkllm import library
from engine.backends.rkllm.abi import detect
from engine.backends.rkllm.board import clocks, driver, nodes

_ROOT = Path("/")


def report_driver(cpu_mask: int, root: Path = _ROOT) -> Iterator[tuple[str, Any]]:
    """Yield the board, the state of the NPU driver, and what keeps this user or board from it.

    `cpu_mask` is RKLLM_CPU_MASK.
    """
    yield "board", driver.read_driver(root).board or "not a Rockchip board"
    yield "NPU", driver.describe_driver(root)
    for sentence in nodes.find_closed_nodes(root):
        yield "access", sentence
    if (warning := driver.find_cpu_warning(cpu_mask, driver.find_npu_cores(root))) is not None:
        yield "CPUs", warning
    yield from clocks.report_clocks(root)
    if (speed_warning := clocks.find_speed_warning(cpu_mask, root)) is not None:
        yield "speed", speed_warning


def report_library(options: RkllmOptions) -> Iterator[tuple[str, Any]]:
    """Yield the library's path, digest and ABI, with evidence. Raises ModelLoadFailed."""
    path = library.find_library(options.lib_path)
    yield "path", str(path)
    yield "sha256", hashlib.sha256(path.read_bytes()).hexdigest()
    evidence = detect.inspect_library(path)
    yield "evidence", evidence.describe()
    for name, fields in evidence.fields.items():
        yield f"defaults read as {name}", dict(fields)
    abi = detect.choose_abi(evidence, options.abi)
    yield "ABI", f"{abi.name} ({abi.versions_text})"
    if (warning := detect.find_version_warning(evidence, abi)) is not None:
        yield "warning", warning
