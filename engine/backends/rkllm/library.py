"""Find librkllmrt.so, check it and load it."""

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
# Lists the libraries that the loader knows, with paths; ctypes.util.find_library returns only the
# name.
_LDCONFIG = "/sbin/ldconfig"
# The folders used by Rockchip's packages, by board images and by the commands in the documentation.
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
# uname's machine names by e_machine of the ELF header (System V ABI and processor supplements).
_MACHINE_NAMES = {
    0x03: "i686",
    0x28: "armv7l",
    0x3E: "x86_64",
    0xB7: "aarch64",
    0xF3: "riscv64",
}


def find_library(setting: str | None) -> Path:
    """Return the library's path: RKLLM_LIB_PATH, else the loader's paths, else the usual folders.

    Raises:
        ModelLoadFailed: there is no library, or the file is not a library for this machine.
    """
    if setting is not None:
        path = Path(setting)
        # Not `Path.is_dir` and `Path.is_file`: they raise if a folder is not accessible.
        if os.path.isdir(path):
            path = path / LIBRARY_NAME
        if not os.path.isfile(path):
            raise ModelLoadFailed(f"RKLLM_LIB_PATH: {_describe_missing(path)}; {_SOURCE_HINT}")
    else:
        candidate = next((path for path in _candidate_paths() if os.path.isfile(path)), None)
        if candidate is None:
            raise ModelLoadFailed(
                f"{LIBRARY_NAME} is not installed: set RKLLM_LIB_PATH, or put it into one of "
                f"{', '.join(_USUAL_FOLDERS)}; {_SOURCE_HINT}"
            )
        path = candidate
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


def _candidate_paths() -> Iterator[Path]:
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield Path(folder, LIBRARY_NAME)
    yield from _loader_candidates()
    for folder in _USUAL_FOLDERS:
        yield Path(folder, LIBRARY_NAME)


def _loader_candidates() -> Iterator[Path]:
    try:
        output = subprocess.run([_LDCONFIG, "-p"], capture_output=True, text=True, check=False)
    except OSError:
        return
    pattern = rf"^\s+{re.escape(LIBRARY_NAME)} .*=> (/.+)$"
    for match in re.finditer(pattern, output.stdout, re.MULTILINE):
        yield Path(match[1])


def check_machine(path: Path) -> None:
    """Raise ModelLoadFailed unless a file is a shared library for this processor."""
    try:
        with path.open("rb") as file:
            header = file.read(64)
    except OSError as error:
        raise ModelLoadFailed(f"RKLLM_LIB_PATH: {path} cannot be read: {error.strerror}") from error
    if len(header) < 20 or header[:4] != b"\x7fELF":
        hint = ""
        if header.startswith(b"version https://git-lfs"):
            hint = ": it is a Git LFS pointer, `git lfs pull` brings the library"
        raise ModelLoadFailed(f"RKLLM_LIB_PATH: {path} is not a shared library{hint}")
    # Byte 5 is the file's byte order.
    machine_number = int.from_bytes(header[18:20], "little" if header[5] == 1 else "big")
    machine = _MACHINE_NAMES.get(machine_number, f"machine {machine_number:#x}")
    if machine != platform.machine():
        raise ModelLoadFailed(
            f"RKLLM_LIB_PATH: {path} is for {machine} and this machine is {platform.machine()}: "
            "the runtime comes in a folder for each architecture"
        )


def load_library(path: Path) -> ctypes.CDLL:
    """Load the library. Raises ModelLoadFailed with the loader's error."""
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
