"""The side of the test process: which programs are forked, and how they are requested."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from common.failpoints import NAME_VARIABLE
from tests.fork_server.server import (
    PRELOADED,
    RUN_MODULE,
    SCRIPT_LIBRARIES,
    find_module_position,
)
from tests.leftovers import outlives_test

ROOT = Path(__file__).resolve().parents[2]
# For PYTHONPATH: our packages, and modules that start faster than those of the libraries.
_QUICK_MODULES = str(ROOT / "tests" / "quick_modules")
PYTHON_PATH = os.pathsep.join((str(ROOT), _QUICK_MODULES))
_PR_SET_CHILD_SUBREAPER = 36
# Room for the command lines of programs.
_LINE = "-" * 8192
# A program that has one of these is not forked: they are read when Python or a library starts.
_READ_AT_START = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "COVERAGE_", "LC_", "TZ", "RUNPOD_", NAME_VARIABLE),
)
_LOCALE = ("LC_", "TZ")
_LIMITS = (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CORE)
_SAFE = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")


server_pids: set[int] = set()


class ForkServer:
    """The connection to a fork server, which is started at first use. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(
        self,
        command: list[str],
        module: str,
        files: Mapping[int, int],
        folder: str,
        environment: Mapping[str, str],
        *,
        new_session: bool,
        process_group: int | None,
    ) -> int:
        """Start a program and return its process id.

        `files` has this process's file descriptors by those of the program.
        """
        request = {
            "preload": module,
            "command": command,
            "files": list(files),
            "folder": folder,
            "environment": dict(environment),
            "limits": {number: resource.getrlimit(number) for number in _LIMITS},
            "new_session": new_session,
            "process_group": process_group,
        }
        with self._lock:
            if self._connection is None:
                with outlives_test():
                    self._connection = self._start()
            # The orphan that the server makes becomes this process's child.
            _adopt_orphans(True)
            try:
                data = json.dumps(request).encode()
                socket.send_fds(self._connection, [data], list(files.values()))
                reply = self._connection.recv(8)
            finally:
                _adopt_orphans(False)
        assert reply, "the fork server has ended"
        return int.from_bytes(reply, "little")

    def close(self) -> None:
        """End the fork server; the programs go on."""
        if self._connection is not None and self._process is not None:
            self._connection.close()
            self._process.wait()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        command = (sys.executable, "-P", "-m", "tests.fork_server.server", str(theirs.fileno()))
        self._process = subprocess.Popen(
            [*command, _LINE],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**_safe_environment(), "PYTHONPATH": PYTHON_PATH, "OPENBLAS_NUM_THREADS": "1"},
        )
        server_pids.add(self._process.pid)
        theirs.close()
        return ours


def _safe_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_LOCALE) or not name.startswith(_READ_AT_START)
    }


def _adopt_orphans(enabled: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(enabled), 0, 0, 0)


def find_forkable_module(
    command: list[str], folder: str | None, environment: Mapping[str, str]
) -> str | None:
    """Return the preloaded module that a command runs; None if it needs a fresh interpreter."""
    if command[:1] != [sys.executable] or sum(map(len, command)) > len(_LINE) / 2:
        return None
    position = find_module_position(command)
    if position is None:
        module = _find_script_library(command[1:], folder)
    else:
        has_options = command[1 : position - 1] not in ([], ["-P"]) or len(command) <= position
        module = None if has_options else command[position]
    if module is None or module not in PRELOADED:
        return None
    for name in environment:
        # The fork server imports the SDK, which reads variables too, again for each program.
        is_safe = (
            name in _SAFE
            or (name.startswith("RUNPOD_") and module in ("handler", *SCRIPT_LIBRARIES))
            or (name.startswith(_LOCALE) and environment[name] == os.environ.get(name))
        )
        if name.startswith(_READ_AT_START) and not is_safe:
            return None
    paths = {each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each}
    if position is None:
        has_usual_path = not paths or str(ROOT) in paths
    else:
        is_in_clone = position == 2 and Path(folder or os.getcwd()) == ROOT
        has_usual_path = is_in_clone or str(ROOT) in paths or command[position - 1] == RUN_MODULE
    return module if has_usual_path and not any(map(_changes_the_start, paths)) else None


def _changes_the_start(folder: str) -> bool:
    """Return whether a folder on the path has a module that each interpreter imports first."""
    return any((Path(folder) / f"{name}customize.py").exists() for name in ("site", "user"))


def _find_script_library(arguments: list[str], folder: str | None) -> str | None:
    """Return the preloaded library that a script imports, which is a file or the text of `-c`."""
    match arguments:
        case ["-c", text, *_]:
            pass
        case [name, *_] if name.endswith(".py"):
            try:
                text = (Path(folder or os.getcwd()) / name).read_text()
            except OSError:
                return None
        case _:
            return None
    imports = {match[1] for match in re.finditer(r"^(?:import|from) (\w+)", text, re.M)}
    return next((each for each in SCRIPT_LIBRARIES if each in imports), None)


def install(config: pytest.Config) -> None:
    """Let `subprocess.Popen`, and what uses it, fork our programs until the end of the session."""
    sys.path.insert(0, _QUICK_MODULES)
    # The qemu of `make test-arm64` has a thread of its own in each process.
    if any(name.startswith("COVERAGE_") or name == "RUNNER" for name in os.environ):
        return
    # A server for each kind of program, so that none finds the modules that another kind imports.
    servers = {module: ForkServer() for module in PRELOADED}
    patches = pytest.MonkeyPatch()
    config.add_cleanup(patches.undo)
    for server in servers.values():
        config.add_cleanup(server.close)
    original = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(original)

    def execute_child(self: Any, *args: Any, **kwargs: Any) -> None:
        options = signature.bind(self, *args, **kwargs).arguments
        command = options["args"]
        environment = os.environ if options["env"] is None else options["env"]
        is_plain = (
            isinstance(command, (list, tuple))
            and not options["shell"]
            and all(options[name] is None for name in ("preexec_fn", "executable"))
            and options["close_fds"]
        )
        module = None
        if is_plain:
            command = [os.fsdecode(each) for each in command]
            folder = None if options["cwd"] is None else os.fspath(options["cwd"])
            module = find_forkable_module(command, folder, environment)
        if module is None:
            original(self, *args, **kwargs)
            return
        ends = {0: options["p2cread"], 1: options["c2pwrite"], 2: options["errwrite"]}
        files = {target: target if end == -1 else end for target, end in ends.items()}
        files |= {each: each for each in options["pass_fds"]}
        self.pid = servers[module].fork(
            command,
            module,
            files,
            folder or os.getcwd(),
            environment,
            new_session=options["start_new_session"],
            process_group=None if options["process_group"] == -1 else options["process_group"],
        )
        self._child_created = True
        self._close_pipe_fds(
            *(options[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite")),
            *(options[name] for name in ("errread", "errwrite")),
        )

    patches.setattr(subprocess.Popen, "_execute_child", execute_child)
