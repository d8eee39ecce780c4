"""The fork server: a process that has imported our modules, and becomes our programs by forking.

Started by `ForkServer` as `python -m tests.fork_server.server FD LINE`. It reads requests from the
socket FD, one at a time, until the test process ends. Each request names a module, which a forked
process then runs as `python -m MODULE` or `common/run_module.py MODULE` does. LINE is long and
means nothing: a program's command line is written over it, so that `/proc` shows what runs.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import os
import resource
import runpy
import socket
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.process_utils import die_with_parent

# What each of our programs imports, also in its functions. `runpod` alone is imported again by each
# process, because it reads its variables then; its libraries, which take a second, stay imported.
PRELOADED = {
    "emulator": (
        *("emulator.app", "emulator.server.server", "emulator.server.start_log"),
        *("emulator.startup.components", "emulator.startup.preflight"),
        *("handler.logs.configuration", "handler.settings.model_settings"),
    ),
    "handler": (
        *("handler.worker.local", "handler.logs.configuration", "handler.settings.worker_settings"),
        *("handler.composition", "handler.settings.model_settings", "handler.doctor.command"),
        "runpod",
    ),
    "batch": (
        *("batch.cli.run", "batch.cli.worker", "batch.cli.submit", "batch.cli.collect"),
        *("batch.settings", "handler.logs.configuration", "handler.composition"),
    ),
    "engine.hosts.child": (
        *("engine.hosts.child", "engine.backends.scripted", "engine.backends.rkllm.backend"),
        *("engine.backends.rkllm.logits.token_loop", "engine.backends.llamacpp"),
        *("jinja2", "tokenizers"),
    ),
    "engine.schema.trial_process": ("engine.schema.trial_process",),
    "engine.doctor.examiner": ("engine.doctor.examiner", "engine.backends.scripted"),
    "jobs.sqlite.server": ("jobs.sqlite.server",),
    "engine.backends.rkllm.abi.detect": ("engine.backends.rkllm.abi.detect",),
    # Scripts, by the library that they import.
    "runpod": ("runpod",),
    "openai": ("openai",),
}
SCRIPT_LIBRARIES = ("runpod", "openai")
ROOT = str(Path(__file__).resolve().parents[2])
RUN_MODULE = f"{ROOT}/common/run_module.py"
_preloaded: set[str] = set()
_MAX_REQUEST_BYTES = 2**20
_MAX_FILES = 16
_MAX_FILE_NUMBER = 2**20
_ORPHAN_POLL_S = 0.0005


def find_module_position(command: Sequence[str]) -> int | None:
    """Return where a command has the name of a module to run; None if it runs a script."""
    for position, argument in enumerate(command[1:3], 2):
        if argument in ("-m", RUN_MODULE):
            return position
    return None


def main() -> list[str] | None:
    """Fork programs until the test process ends; in a forked process, return its command line."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    test_process = os.getppid()
    while True:
        message, files, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, _MAX_FILES)
        if not message:
            return None
        request = json.loads(message)
        _preload(request["preload"])
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, "an imported module has started a thread, so a fork is not safe"
        if (pid := _fork_orphan()) == 0:
            # Its number may be that of a file of the program, which it must not close later.
            connection.detach()
            _wait_for_parent(test_process)
            die_with_parent(test_process)
            return _become(request, files)
        connection.sendall(pid.to_bytes(8, "little"))
        for file in files:
            os.close(file)


def _preload(program: str) -> None:
    if program in _preloaded:
        return
    for name in PRELOADED[program]:
        importlib.import_module(name)
    _preloaded.add(program)
    for name in list(sys.modules):
        # `-m` imports its module again, as the main module.
        if (name in PRELOADED and "." in name) or name.partition(".")[0] == "runpod":
            del sys.modules[name]


def _fork_orphan() -> int:
    """Fork a process whose parent ends at once, so that the test process becomes its parent."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            return 0
        os.write(writer, pid.to_bytes(8, "little"))
        os._exit(0)
    os.close(writer)
    os.waitpid(between, 0)
    pid = int.from_bytes(os.read(reader, 8), "little")
    # The process has closed its end once it has become a program.
    os.read(reader, 1)
    os.close(reader)
    return pid


def _wait_for_parent(pid: int) -> None:
    while os.getppid() != pid:
        time.sleep(_ORPHAN_POLL_S)


def _become(request: dict[str, Any], files: Sequence[int]) -> list[str]:
    """Give this process the files, folder, environment and command line of a program."""
    if request["new_session"]:
        os.setsid()
    if request["process_group"] is not None:
        os.setpgid(0, request["process_group"])
    for number, limits in request["limits"].items():
        resource.setrlimit(int(number), tuple(limits))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for path in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if path and path not in sys.path:
            sys.path.insert(0, path)
    command: list[str] = request["command"]
    _show_command(command)
    _place_files(dict(zip(request["files"], files, strict=True)))
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=unbuffered)  # type: ignore[union-attr]
    return command


def _place_files(targets: dict[int, int]) -> None:
    """Move each open file to its target, and close all others: that ends the wait for this one."""
    first_free = max(*targets, *targets.values()) + 1
    moved = {
        target: fcntl.fcntl(file, fcntl.F_DUPFD, first_free) for target, file in targets.items()
    }
    os.closerange(3, first_free)
    for target, file in moved.items():
        os.dup2(file, target)
    os.closerange(first_free, _MAX_FILE_NUMBER)


def _show_command(command: Sequence[str]) -> None:
    """Write the command line over this process's own, where `/proc/PID/cmdline` reads it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    line = b"\0".join(os.fsencode(each) for each in command) + b"\0"
    ctypes.memmove(start, line[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _run_script(arguments: list[str]) -> None:
    """Run a file, or the text after `-c`, as the main module."""
    if not os.environ.get("PYTHONPATH"):
        tests = f"{ROOT}/tests"
        sys.path[:] = [each for each in sys.path if not Path(each).is_relative_to(tests)]
        sys.path.remove(ROOT)
    main_module = sys.modules["__main__"] = types.ModuleType("__main__")
    if arguments[0] == "-c":
        name, code = "<string>", arguments[1].encode()
        sys.argv[:] = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
    else:
        name = main_module.__file__ = arguments[0]
        code = Path(name).read_bytes()
        sys.argv[:] = arguments
        sys.path.insert(0, str(Path(name).resolve().parent))
    exec(compile(code, name, "exec"), main_module.__dict__)  # noqa: S102 - as the command does


if __name__ == "__main__":
    if (command := main()) is None:
        pass
    elif (position := find_module_position(command)) is None:
        _run_script(command[1:])
    else:
        sys.argv[:] = command[position:]
        if command[position - 1] == RUN_MODULE:
            sys.path.insert(0, ROOT)
        elif "-P" not in command[:position]:
            sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(sys.argv[0])  # type: ignore[attr-defined]
