"""`python -m emulator` on one database and one port, through all its lives."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx2

from tests.crashes.processes import ENGINE_HOST, STORE, alive, child
from tests.crashes.template import ROOT, Forked, Template
from tests.integration.emulator.serving import http_client
from tests.ports import free_port
from tests.waiting import poll_until, wait_until

_START_S = 60.0
_LOOK_S = 0.01
_GONE_S = 20.0
_END_S = 60.0
_KEPT = ("PATH", "HOME", "LANG", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


class Server:
    """The process of now, and what it left behind when it was killed before."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str], template: Template | None = None
    ) -> None:
        """Nothing is started yet; with a template, lives are forked from it."""
        self._template = template
        self.port = free_port()
        self.database = folder / "jobs.sqlite3"
        self.log = folder / "server.log"
        self.start_s: list[float] = []
        # A killed server cannot tidy up after itself: what it leaves goes with the folder.
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        self.environment = {
            **{name: os.environ[name] for name in _KEPT if name in os.environ},
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(scratch),
            "JOB_DB": str(self.database),
            "PORT": str(self.port),
            "ENGINE": "scripted",
            "LOG_FORMAT": "json",
            "LOG_LEVEL": "WARNING",
            **settings,
        }
        self._process: asyncio.subprocess.Process | Forked | None = None
        self._orphans: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def store_pid(self) -> int | None:
        return child(self.pid, STORE)

    @property
    def engine_pid(self) -> int | None:
        return child(self.pid, ENGINE_HOST)

    def client(self, timeout_s: float = 20.0) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        return http_client(self.url, timeout=timeout_s, limits=limits)

    async def start(self, **settings: str) -> None:
        """Start it, some settings changed, and wait until it answers."""
        began = time.monotonic()
        await self.spawn(**settings)
        await self.settle()
        assert self.lives, self.last_words()
        self.start_s.append(time.monotonic() - began)

    async def settle(self) -> None:
        """Wait until it answers, or has ended instead."""
        await poll_until(self._settled, _START_S, _LOOK_S)

    async def _settled(self) -> bool:
        return not self.lives or await answers(self.port)

    async def spawn(self, **settings: str) -> None:
        """Start it and wait for nothing."""
        environment = self.environment | settings
        if self._template is not None:
            self._process = await self._template.fork(environment, self.log)
            return
        with open(self.log, "ab") as log:  # noqa: ASYNC230 - it takes a moment
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "emulator",
                cwd=self.log.parent,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def kill(self) -> None:
        """Kill it as `kill -9` does; its children are looked for by `orphans`."""
        self._orphans += [pid for pid in (self.store_pid, self.engine_pid) if pid is not None]
        os.kill(self.pid, signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        """End it with SIGTERM; return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        """Wait for its end; return its exit code."""
        assert self._process is not None
        async with asyncio.timeout(_END_S):
            return await self._process.wait()

    async def close(self) -> None:
        """Kill it if it lives."""
        if self.lives:
            await self.kill()

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def orphans(self) -> list[int]:
        """Return which children outlived their killed servers, having given them time to go."""
        with suppress(TimeoutError):
            await wait_until(lambda: not any(map(alive, self._orphans)), _GONE_S)
        self._orphans = [pid for pid in self._orphans if alive(pid)]
        return self._orphans

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


async def answers(port: int) -> bool:
    """Ask for /health once, without a client's cost."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        return (await reader.read(64)).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
    finally:
        writer.close()
