"""Fork servers from a process that has imported the modules, which saves half a second each.

A forked server runs `emulator.__main__.main` in a process and environment of its own, and can be
killed like any other. Tests that need a hundred servers would take too long otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]


class Forked:
    """One forked server, with the interface of asyncio's `Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    def end(self, code: int) -> None:
        self.returncode = code
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode


class Template:
    """The process that forks servers; the test that opens it also closes it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._forked: dict[int, Forked] = {}
        self._born: asyncio.Queue[Forked] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(cls) -> Self:
        kept = ("PATH", "HOME", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.crashes.template",
                cwd=ROOT,
                env={name: os.environ[name] for name in kept if name in os.environ},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        )

    async def fork(self, environment: Mapping[str, str], log: Path) -> Forked:
        """Start a server; its output goes to the end of `log`."""
        order = {"environment": dict(environment), "log": str(log)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return await self._born.get()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if "code" in message:
                self._forked.pop(message["pid"]).end(message["code"])
            else:
                forked = self._forked[message["pid"]] = Forked(message["pid"])
                self._born.put_nowait(forked)

    async def close(self) -> None:
        """End the process and all servers that it forked."""
        for pid in self._forked:
            os.kill(pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reader


# -- the process itself ---------------------------------------------------------------------------


def _serve_forks() -> None:
    # The modules that take long to import: the server's, and the ones that uvicorn loads by name.
    for name in ("emulator.__main__", "httptools", "uvloop", "uvicorn.loops.uvloop"):
        importlib.import_module(name)
    importlib.import_module("uvicorn.protocols.http.httptools_impl")
    importlib.import_module("uvicorn.lifespan.on")
    # Reading the rules takes as long as the rest of a start.
    validator = importlib.import_module("validation.rules_validator")
    validator.RulesValidator.from_file = functools.cache(validator.RulesValidator.from_file)
    validator.RulesValidator.from_file(validator.DEFAULT_RULES)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run_server(order)
        _write_message({"pid": pid})
        threading.Thread(target=_await, args=(pid,), daemon=True).start()


def _await(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    _write_message({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _write_message(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _run_server(order: dict[str, Any]) -> None:
    """Run a server; never returns."""
    code = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(order["environment"])
        # This module read the environment when it was imported.
        importlib.reload(importlib.import_module("common.failpoints"))
        sys.argv = ["emulator"]
        code = importlib.import_module("emulator.__main__").main()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        # `os._exit` skips the interpreter's own report of the exception.
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve_forks()
