"""Run programs that the fake library may crash, each in a child process.

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
from engine.backends.rkllm.abi.abi import ABIS
from tests.integration.engine.rkllm.driver import Driver, images_prompt
d = Driver(Path({library!r}), ABIS[{abi!r}], Path({model!r}), **{param!r})
"""


class ProgramResult(NamedTuple):
    """The result of a program: the signal that killed it, if any, and its output."""

    signal: signal.Signals | None
    error: str
    output: str


class ProcessForker:
    """Owns the process that forks children. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.engine.rkllm.processes", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def run(
        self, library: Path, abi: str, model: Path, program: str, **param: object
    ) -> ProgramResult:
        """Run a program in a new process, with a Driver `d` of these arguments."""
        values = {"library": str(library), "abi": abi, "model": str(model), "param": param}
        (self._folder / "program.py").write_text(PRELUDE.format(**values) + program)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        output, error = ((self._folder / name).read_text() for name in ("output", "error"))
        return ProgramResult(signal.Signals(-code) if code < 0 else None, error, output)

    def close(self) -> None:
        self._process.communicate(timeout=TIMEOUT_S)


def _run_program(folder: Path) -> None:
    # Ends a program that hangs; the test then sees SIGALRM.
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


def _run_programs(folder: Path) -> None:
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            _run_program(folder)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    # Imported before forking, so that no child has to import it.
    importlib.import_module("tests.integration.engine.rkllm.driver")
    _run_programs(Path(sys.argv[1]))
