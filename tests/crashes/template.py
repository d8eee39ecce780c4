"""Servers without their half second of imports: forked from a process that has done them.

What is forked runs `emulator.__main__.main` in a process of its own, with its own environment, and
dies like any other. Where a test needs a hundred servers it could not pay for starting them.
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
    """One forked server, as asyncio shows processes."""

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
    """The process that forks; owned by the test, which closes it."""

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
            told = json.loads(line)
            if "code" in told:
                self._forked.pop(told["pid"]).end(told["code"])
            else:
                forked = self._forked[told["pid"]] = Forked(told["pid"])
                self._born.put_nowait(forked)

    async def close(self) -> None:
        """End it, and with it what it forked."""
        for pid in self._forked:
            os.kill(pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reader


# -- the process itself ---------------------------------------------------------------------------


def _serve() -> None:
    # As many of the modules as it is worth: the server's, and those that uvicorn finds by name.
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
            _become(order)
        _tell({"pid": pid})
        threading.Thread(target=_await, args=(pid,), daemon=True).start()


def _await(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    _tell({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _become(order: dict[str, Any]) -> None:
    """Be a server; never returns."""
    code = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(order["environment"])
        # It has read the environment when it was imported.
        importlib.reload(importlib.import_module("common.failpoints"))
        sys.argv = ["emulator"]
        code = importlib.import_module("emulator.__main__").main()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        # The interpreter, which would say so, does not come to its end.
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve()
