"""Finding librkllmrt.so, and telling what is wrong with one before it is loaded."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from engine.errors import ModelLoadFailed

LIBRARY_NAME = "librkllmrt.so"
# Lists what the loader finds by name; ctypes.util.find_library gives the name alone.
_LDCONFIG = "/sbin/ldconfig"
# Where Rockchip's packages, board images and the documentation's own commands put it.
_USUAL_FOLDERS = (
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib/aarch64-linux-gnu",
    "/lib",
    "/opt/rkllm/lib",
    "/oem/usr/lib",
)
_SOURCE_HINT = (
    "it comes with github.com/airockchip/rknn-llm, in rkllm-runtime/Linux/librkllm_api/aarch64"
)
# e_machine of the ELF header (System V ABI; the processor supplements) for uname's names.
_MACHINE_NAMES = {
    0x03: "i686",
    0x28: "armv7l",
    0x3E: "x86_64",
    0xB7: "aarch64",
    0xF3: "riscv64",
}


def find_library(given: str | None) -> Path:
    """Return the library's path: RKLLM_LIB_PATH, else the loader's path, else the usual places.

    Raises:
        ModelLoadFailed: there is none, or what there is cannot be this machine's library.
    """
    if given is not None:
        path = Path(given)
        # Not by Path's own methods, which raise where a folder may not be entered.
        if os.path.isdir(path):
            path = path / LIBRARY_NAME
        if not os.path.isfile(path):
            raise ModelLoadFailed(f"RKLLM_LIB_PATH: {_why_not(path)}; {_WHERE_FROM}")
    else:
        found = next((path for path in _candidates() if os.path.isfile(path)), None)
        if found is None:
            raise ModelLoadFailed(
                f"{NAME} is not installed: set RKLLM_LIB_PATH, or put it into one of "
                f"{', '.join(_USUAL)}; {_WHERE_FROM}"
            )
        path = found
    check_machine(path)
    return path.resolve()


def _describe_missing(path: Path) -> str:
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return f"there is no file {path}"


def _candidates() -> Iterator[Path]:
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield Path(folder, LIBRARY_NAME)
    yield from _loader_candidates()
    for folder in _USUAL_FOLDERS:
        yield Path(folder, LIBRARY_NAME)


def _loader_candidates() -> Iterator[Path]:
    try:
        listed = subprocess.run([_LDCONFIG, "-p"], capture_output=True, text=True, check=False)
    except OSError:
        return
    for found in re.finditer(rf"^\s+{re.escape(NAME)} .*=> (/.+)$", listed.stdout, re.MULTILINE):
        yield Path(found[1])


def check_machine(path: Path) -> None:
    """Look whether a file is a shared library for this processor. Raises ModelLoadFailed."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise ModelLoadFailed(f"RKLLM_LIB_PATH: {path} cannot be read: {error.strerror}") from error
    if len(head) < 20 or head[:4] != b"\x7fELF":
        hint = ""
        if head.startswith(b"version https://git-lfs"):
            hint = ": it is a Git LFS pointer, `git lfs pull` brings the library"
        raise ModelLoadFailed(f"RKLLM_LIB_PATH: {path} is not a shared library{hint}")
    # Byte 5 is the file's byte order.
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    machine = _MACHINE_NAMES.get(number, f"machine {number:#x}")
    if machine != platform.machine():
        raise ModelLoadFailed(
            f"RKLLM_LIB_PATH: {path} is for {machine} and this machine is {platform.machine()}: "
            "the runtime comes in a folder for each architecture"
        )


def load_library(path: Path) -> ctypes.CDLL:
    """Return the loaded library. Raises ModelLoadFailed with what the loader says."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        reason = str(error).removeprefix(f"{path}: ")
        hint = ""
        if "cannot open shared object file" in reason:
            hint = "; a library that it needs is not installed (`ldd` names all of them)"
        elif "GLIBC" in reason:
            hint = "; this system is older than the one it was built for"
        raise ModelLoadFailed(f"RKLLM_LIB_PATH: {path} does not load: {reason}{hint}") from error
