"""Build a fake, fault-injecting librkllmrt.so for tests, and write its "model files"."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

SOURCES = Path(__file__).parent
LIBRARY = "librkllmrt.so"

# The emulated versions, with their values of -DABI.
ABIS = {"1.2": 12, "1.3": 13, "1.3.1": 131, "1.2.0": 120, "1.1": 110}
OLD = ("1.2.0", "1.1")
# The numbers of an embedding: EMBEDDING in fake.h.
EMBEDDING_WIDTH = 8

FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2")
SHARED = ("-shared", "-fPIC", "-pthread", "-fvisibility=hidden")


def compiler() -> list[str]:
    """Return the system's C compiler as a command.

    Raises RuntimeError without one, because the tests must not be skipped.
    """
    for command in (os.environ.get("CC", ""), "cc", "gcc"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    raise RuntimeError(
        "the stand-in for librkllmrt.so needs a C compiler and found neither $CC nor cc nor gcc: "
        "on Debian and Ubuntu, `apt-get install gcc libc6-dev` brings one"
    )


def runner() -> list[str]:
    """Return the command prefix that runs compiled programs: $RUNNER, or nothing."""
    return shlex.split(os.environ.get("RUNNER", ""))


def build(abi: str, directory: Path, **defines: str | int) -> Path:
    """Compile the fake library for one of `ABIS` into its own subfolder; return its path.

    A library that already exists in the directory is reused. `defines` are passed to the compiler,
    texts as C strings: VERSION="1.2.1" changes the version that the library reports.
    """
    values = {
        name: f'"{value}"' if isinstance(value, str) else str(value)
        for name, value in defines.items()
    }
    macros = [f"-D{name}={value}" for name, value in sorted(values.items())]
    library = directory / "".join([abi, *macros]).replace('"', "").replace("/", "_") / LIBRARY
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    old = SOURCES / "old.c"
    sources = [old] if abi in OLD else [file for file in SOURCES.glob("*.c") if file != old]
    with (library.parent / "lock").open("w") as lock:
        # Another process that builds the same library waits here.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.exists():
            return library
        # Built under another name and renamed, so that no process loads an incomplete library.
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            built = Path(folder) / LIBRARY
            command = (*FLAGS, *SHARED, f"-DABI={ABIS[abi]}", *macros, *map(str, sources))
            run(*command, "-o", str(built))
            built.rename(library)
    return library


def run(*arguments: str) -> None:
    """Run the compiler. Raises RuntimeError with its output."""
    command = [*compiler(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")


def write_script(path: Path, script: str) -> Path:
    """Write a "model file", whose format is in README.md; the first line is added here."""
    path.write_text("fake-rkllm\n" + dedent(script), encoding="utf-8")
    return path


def quoted(text: str | bytes) -> str:
    """Return a quoted text of the script format that represents exactly these bytes."""
    data = text.encode() if isinstance(text, str) else text
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'


class Call(NamedTuple):
    """A line of FAKE_RKLLM_LOG: a call to the library, or the end of a run."""

    ns: int
    pid: int
    thread: int
    name: str
    values: dict[str, str]


def read_log(path: Path) -> list[Call]:
    """Return the calls logged so far, in order."""
    calls = []
    for line in path.read_text().splitlines():
        ns, pid, thread, name, *rest = line.split(" ")
        values = dict(word.split("=", 1) for word in rest if "=" in word)
        calls.append(Call(int(ns), int(pid), int(thread), name, values))
    return calls
