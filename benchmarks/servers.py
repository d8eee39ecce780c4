"""Server processes, ours and the peers': start, readiness check and stop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.client import WrongAnswer, ask
from engine.hosts.child_process import thread_wait_env
from tests.ports import free_port

_ROOT = Path(__file__).resolve().parent.parent
_START_S = 120.0
_STOP_S = 15.0
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")


async def is_healthy(port: int) -> bool:
    """Return whether the health check of a server succeeds, as ours and most peers have it."""
    return (await ask(port, "/health", timeout_s=5)).json().get("status") == "ok"


async def is_running_jobs(port: int) -> bool:
    """Return whether a server runs a job, for the SDK's server, which has no health check."""
    return "id" in (await ask(port, "/runsync", {"input": {}}, timeout_s=5)).json()


@contextmanager
def run_server(
    module: str,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    ready: Callable[[int], Awaitable[bool]] = is_healthy,
) -> Iterator[int]:
    """Run a module of `benchmarks.processes` as a server; yield its port once it is `ready`.

    It gets its port and this process's id before `args`, and only the named environment variables,
    so that the user's settings do not affect a comparison.

    Raises:
        RuntimeError: it exited or was not ready in time; the message has its last output.
    """
    port = free_port()
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    command = [sys.executable, "-m", f"benchmarks.processes.{module}", str(port), str(os.getpid())]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, *args],
            cwd=_ROOT,
            # The same as our engine host's, because the next measured server needs the cores.
            env={**thread_wait_env({}), **inherited, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            if not asyncio.run(_started(port, process, ready)):
                log.seek(0)
                words = log.read()[-2000:].decode("utf-8", "replace")
                raise RuntimeError(f"the server {module} did not start: {words}")
            yield port
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_S)


async def _started(
    port: int, process: subprocess.Popen[bytes], ready: Callable[[int], Awaitable[bool]]
) -> bool:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if await ready(port):
                return True
        except (OSError, TimeoutError, WrongAnswer, ValueError):
            pass
        await asyncio.sleep(0.05)
    return False


def engine_host(port: int) -> int:
    """Return the process id of the engine of our server on a port. Raises LookupError."""
    return _process(b"engine.hosts.child", str(our_server(port)).encode())


def our_server(port: int) -> int:
    """Return the process id of our server on a port. Raises LookupError."""
    return _process(b"benchmarks.processes.emulator", str(port).encode())


def processor_s(module: str, port: int) -> float:
    """Return the processor time used by a server and all its child processes so far.

    Raises LookupError.
    """
    known = {_process(f"benchmarks.processes.{module}".encode(), str(port).encode())}
    parents: dict[int, int] = {}
    taken_s: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # After the name, which may have any characters: state, parent, …
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            taken_s[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    while more := {pid for pid, parent in parents.items() if parent in known} - known:
        known |= more
    return sum(taken_s[pid] for pid in known if pid in taken_s)


def _process(*words: bytes) -> int:
    """Return the process whose command line has all these words. Raises LookupError."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            # The process has exited meanwhile.
            continue
        if all(word in arguments for word in words):
            return int(path.parent.name)
    raise LookupError(f"no process has {words} in its command line")
