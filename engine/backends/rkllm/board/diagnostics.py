"""The doctor's findings about RKLLM before a model is loaded: the NPU driver and the library."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from engine.backends.options import RkllmOptions
from engine.backends.rkllm import library
from engine.backends.rkllm.abi import detect
from engine.backends.rkllm.board import driver


def report_driver() -> Iterator[tuple[str, Any]]:
    """Yield the board and the state of the NPU driver."""
    yield "board", driver.read_driver().board or "not a Rockchip board"
    yield "NPU", driver.describe_driver()
    if (warning := driver.find_cpu_warning(0)) is not None:
        yield "CPUs", warning


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
