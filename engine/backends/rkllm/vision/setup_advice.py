"""Explain why a vision encoder does not load, from what RKNN's libraries print."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.backends.rkllm.board import nodes

# Where rknn-toolkit-lite2 2.5.0 and a user's report (rknn-toolkit2#350) have it.
_LIBRARY_FILES = ("usr/lib/librknnrt.so", "usr/lib64/librknnrt.so")
_DEVICE_TREE = "proc/device-tree/compatible"
_LIBRARY_SOURCE = (
    "github.com/airockchip/rknn-toolkit2 has it in rknpu2/runtime/Linux/librknn_api/aarch64"
)
# The newest Python for which rknn-toolkit-lite2 2.5.0 has a package.
_NEWEST_PYTHON = (3, 12)
_ROOT = Path("/")

_LIBRARY_MISSING = re.compile(
    r"Can not find dynamic library|librknnrt\.so( is missing|: cannot open)"
)
# Not RKNN_ERR_MODEL_INVALID alone: a warning of loads that succeed has it (rknn-toolkit2#448).
_OTHER_VERSION = re.compile(
    r"Invalid RKNN (model version|format)|init failed\. error code: RKNN_ERR_MODEL_INVALID"
)
_CORES_REFUSED = re.compile(r"core.mask|core mode", re.IGNORECASE)
_NO_CHIP = re.compile(r"Unsupported run platform|device-tree\S* is missing")
_NO_DEVICE = re.compile(r"failed to open rkn")
_NOT_SUBMITTED = re.compile(r"failed to submit")
_RUNTIME_VERSION = re.compile(r"librknnrt version: (\S+)")
_TOOLKIT_VERSION = re.compile(r"toolkit version: (\d[\w.]*)")


def describe_missing_package(module: str | None) -> str:
    """Return a sentence on how to install the package that a failed import of RKNNLite needs."""
    package = (module or "rknnlite").partition(".")[0]
    if package != "rknnlite":
        return (
            f"RKLLM_VISION: rknn-toolkit-lite2 needs the package {package}, which is not "
            "installed: `make vision` installs all that it needs"
        )
    sentence = "RKLLM_VISION: a vision encoder needs rknn-toolkit-lite2, "
    if platform.machine() != "aarch64":
        return (
            sentence + f"which has packages for aarch64 only; this machine is {platform.machine()}"
        )
    if sys.version_info[:2] > _NEWEST_PYTHON:
        return sentence + (
            f"which has packages for Pythons up to 3.12; this is {platform.python_version()}"
        )
    return (
        sentence
        + "which is not installed: `make vision` or `pip install rknn-toolkit-lite2` does it"
    )


def find_printed_advice(lines: Sequence[str], cores: str, root: Path = _ROOT) -> str | None:
    """Return what to do about a failure by the lines that were printed; None if none shows it.

    `cores` is RKLLM_VISION_CORES. The texts are those of rknn-toolkit-lite2 2.5.0 and of public
    logs: rknn-toolkit2#281 (versions), #294 (cores), rknn-toolkit#454 (node), rknn_model_zoo#231
    (chip).
    """
    text = "\n".join(lines)
    if _NO_CHIP.search(text):
        return _describe_device_tree(root)
    if _LIBRARY_MISSING.search(text):
        return _describe_library(root)
    if _NO_DEVICE.search(text):
        return "the NPU's node cannot be opened" + nodes.describe_closed_nodes(root)
    if _OTHER_VERSION.search(text):
        return _describe_versions(text)
    if _NOT_SUBMITTED.search(text):
        return (
            "with the NPU drivers 0.9.2 and 0.9.3 set RKLLM_VISION_CORES=0, and stop other "
            "programs that use the NPU"
        )
    if _CORES_REFUSED.search(text):
        return f"RKLLM_VISION_CORES is {cores}, which this chip or model does not support: set auto"
    return None


def find_missing_part(root: Path = _ROOT) -> str | None:
    """Return what to do about a file that the toolkit needs and that is not there."""
    if not (root / _DEVICE_TREE).exists():
        return _describe_device_tree(root)
    return None if _has_library(root) else _describe_library(root)


def _describe_device_tree(root: Path) -> str:
    if (root / _DEVICE_TREE).exists():
        return f"rknn-toolkit-lite2 does not know the chip in /{_DEVICE_TREE}"
    return (
        f"rknn-toolkit-lite2 reads the chip from /{_DEVICE_TREE}, which is not there: Docker hides "
        "it, unless the container has --security-opt systempaths=unconfined"
    )


def _has_library(root: Path) -> bool:
    if setting := os.environ.get("LIBRKNNRT_PATH"):
        return os.path.exists(setting)
    return any((root / each).exists() for each in _LIBRARY_FILES)


def _describe_library(root: Path) -> str:
    if (setting := os.environ.get("LIBRKNNRT_PATH")) and not os.path.exists(setting):
        return f"LIBRKNNRT_PATH names {setting}, which does not exist; {_LIBRARY_SOURCE}"
    return (
        "librknnrt.so is not in /usr/lib: put it there, or set LIBRKNNRT_PATH to its path; "
        f"{_LIBRARY_SOURCE}"
    )


def _describe_versions(text: str) -> str:
    """Return a sentence with the versions of the library and of the file, as far as printed."""
    runtime, toolkit = _RUNTIME_VERSION.search(text), _TOOLKIT_VERSION.search(text)
    library = f"librknnrt.so {runtime[1]}" if runtime else "the installed librknnrt.so"
    needed = f"version {toolkit[1]}" if toolkit else "the version of the toolkit that made the file"
    return (
        f"{library} does not take this file: install librknnrt.so of {needed}, or convert the "
        "model again, for this chip and this library"
    )
