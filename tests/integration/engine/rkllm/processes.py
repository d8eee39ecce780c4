"""Programs over the stand-in that may not survive it, each in a process of its own.

A process that has imported everything forks one for each: starting Python anew takes a hundred
times as long.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[4]
TIMEOUT_S = int(30 * PATIENCE)

PRELUDE = """
import ctypes, threading, time
from pathlib import Path
from engine.backends.rkllm.abi import ABIS
from tests.integration.engine.rkllm.driver import Driver
d = Driver(Path({library!r}), ABIS[{abi!r}], Path({model!r}), **{param!r})
"""


class Died(NamedTuple):
    """How a program ended: the signal that killed it, if one did, and what it printed."""

    signal: signal.Signals | None
    error: str
    output: str


class Forker:
    """Owns the process that forks; for one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.engine.rkllm.processes", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def run(self, library: Path, abi: str, model: Path, program: str, **param: object) -> Died:
        """Let a new process make a Driver `d` of these and run a program with it."""
        values = {"library": str(library), "abi": abi, "model": str(model), "param": param}
        (self._folder / "program.py").write_text(PRELUDE.format(**values) + program)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        output, error = ((self._folder / name).read_text() for name in ("output", "error"))
        return Died(signal.Signals(-code) if code < 0 else None, error, output)

    def close(self) -> None:
        self._process.communicate(timeout=TIMEOUT_S)


def _child(folder: Path) -> None:
    # A program that hangs is ended by this, and the test sees SIGALRM.
    signal.alarm(TIMEOUT_S)
    for name, descriptor in (("output", 1), ("error", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    code = 0
    try:
        runpy.run_path(str(folder / "program.py"))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(folder: Path) -> None:
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            _child(folder)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    # Before it forks, so that no child has to.
    importlib.import_module("tests.integration.engine.rkllm.driver")
    _serve(Path(sys.argv[1]))
