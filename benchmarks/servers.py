"""Server processes: ours and the peers', started, waited for and stopped alike."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.client import HOST, WrongAnswer, ask

_ROOT = Path(__file__).resolve().parent.parent
_START_S = 120.0
_STOP_S = 15.0
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")


@contextmanager
def serving(
    module: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Run a module of `benchmarks.processes` as a server; yields its port once it is ready.

    It is given its port and this process's id before `args`, and of the environment only what is
    named: settings of the person at the keyboard must not decide a comparison.

    Raises:
        RuntimeError: it ended or was not ready in time; with its last words.
    """
    port = _free_port()
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    command = [sys.executable, "-m", f"benchmarks.processes.{module}", str(port), str(os.getpid())]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, *args],
            cwd=_ROOT,
            # Threads of llama.cpp that spin while they wait would take the cores from whoever is
            # measured next; our engine host sets the same.
            env={"OMP_WAIT_POLICY": "PASSIVE", **inherited, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            if not asyncio.run(_ready(port, process)):
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


async def _ready(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if (await ask(port, "/health", timeout_s=5)).json().get("status") == "ok":
                return True
        except (OSError, TimeoutError, WrongAnswer, ValueError):
            pass
        await asyncio.sleep(0.05)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
