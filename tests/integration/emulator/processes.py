"""`python -m emulator` as a process of its own."""

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
from tests.integration.emulator.serving import http_client
from tests.unit.emulator.events import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]
_RUNNING = re.compile(r"running on http://127\.0\.0\.1:(\d+)")
# What would change the server under test if the machine happened to set it.
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


class Emulator:
    """The process, its port once it listens, and what it has written so far."""

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
        """Its open files and its threads."""
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
            if found := _RUNNING.search(line):
                self.port = int(found[1])
                self._listening.set()

    async def listening(self) -> None:
        """Wait until it listens."""
        waiter = asyncio.create_task(self._listening.wait())
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({waiter, self._reader}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        assert self.port, self.stderr

    async def ended(self) -> int:
        """Wait for its end; return its exit code."""
        async with asyncio.timeout(DEADLINE_S):
            code = await self.process.wait()
            await self._reader
        return code


def server_command(*arguments: str) -> list[str]:
    """Return the words that start the server."""
    return [sys.executable, "-m", "emulator", *arguments]


def environment_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a server under test: settings, and nothing that would change it."""
    always = {
        "PYTHONPATH": str(ROOT),
        "LOG_FORMAT": "json",
        "JOB_DB": ":memory:",
        # Reading all rules there are would take a quarter of the start.
        "VALIDATION_RULES": str(SMALL_RULES),
    }
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **always, **settings}


@asynccontextmanager
async def emulator(
    environment: Mapping[str, str], *arguments: str, grace_s: float | None = None
) -> AsyncIterator[Emulator]:
    """Start the server with some settings; kill it at the end if it still lives.

    `grace_s` stands in for the half minute that what runs gets at the end.
    """
    if grace_s is not None:
        environment = {**environment, "DRAIN_S": str(grace_s)}
    process = await asyncio.create_subprocess_exec(
        *server_command(*arguments),
        cwd=ROOT,
        env=environment_of(environment),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    found = Emulator(process)
    try:
        yield found
    finally:
        if process.returncode is None:
            process.kill()
        await found.ended()
