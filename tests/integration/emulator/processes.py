"""Starts `python -m emulator` as a separate process."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from tests.conftest import SMALL_RULES
from tests.fork_server.client import PYTHON_PATH
from tests.integration.emulator.serving import http_client
from tests.unit.emulator.events import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]
_LISTENING_LINE = re.compile(r"running on http://127\.0\.0\.1:(\d+)")
# The server inherits only these variables: others could change its behaviour.
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


class EmulatorProcess:
    """A server process, its port once it listens, and the lines that it has logged so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0
        self.lines: list[str] = []
        self._listening = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def state(self) -> tuple[int, int]:
        """The numbers of its open files and of its threads."""
        return len(os.listdir(f"/proc/{self.pid}/fd")), len(os.listdir(f"/proc/{self.pid}/task"))

    @property
    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def stderr(self) -> str:
        return "\n".join(self.lines)

    def client(self) -> httpx2.AsyncClient:
        return http_client(f"http://127.0.0.1:{self.port}")

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := (await self.process.stderr.readline()).decode():
            self.lines.append(line.rstrip())
            if match := _LISTENING_LINE.search(line):
                self.port = int(match[1])
                self._listening.set()

    async def wait_until_listening(self) -> None:
        """Wait until the server listens."""
        waiter = asyncio.create_task(self._listening.wait())
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({waiter, self._reader}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        assert self.port, self.stderr

    async def wait_for_exit(self) -> int:
        """Wait until the process exits; return its exit code."""
        async with asyncio.timeout(DEADLINE_S):
            code = await self.process.wait()
            await self._reader
        return code


def server_command(*arguments: str) -> list[str]:
    """Return the command that starts the server."""
    return [sys.executable, "-m", "emulator", *arguments]


def build_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server under test: the settings, and a few safe variables."""
    defaults = {
        "PYTHONPATH": PYTHON_PATH,
        "LOG_FORMAT": "json",
        "JOB_DB": ":memory:",
        # Reading all rules would take a quarter of the start time.
        "VALIDATION_RULES": str(SMALL_RULES),
    }
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, **defaults, **settings}


@asynccontextmanager
async def run_emulator(
    environment: Mapping[str, str], *arguments: str, grace_s: float | None = None
) -> AsyncIterator[EmulatorProcess]:
    """Start the server with some settings; kill it at the end if it still runs.

    `grace_s` replaces the default drain limit of 30 s.
    """
    if grace_s is not None:
        environment = {**environment, "DRAIN_S": str(grace_s)}
    process = await asyncio.create_subprocess_exec(
        *server_command(*arguments),
        cwd=ROOT,
        env=build_environment(environment),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    server = EmulatorProcess(process)
    try:
        yield server
    finally:
        if process.returncode is None:
            process.kill()
        await server.wait_for_exit()
