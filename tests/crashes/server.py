"""`python -m emulator` on one database and one port, across restarts."""

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
from tests.crashes.template import Forked, Template
from tests.fork_server.client import PYTHON_PATH
from tests.integration.emulator.serving import http_client
from tests.ports import free_port
from tests.waiting import poll_until, wait_until

_START_TIMEOUT_S = 60.0
_POLL_INTERVAL_S = 0.01
_ORPHAN_TIMEOUT_S = 20.0
_END_TIMEOUT_S = 60.0
_KEPT = ("PATH", "HOME", "LANG", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


class Server:
    """The current process of a server, and the children of its killed processes."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str], template: Template | None = None
    ) -> None:
        """Prepare a server without starting it; a template forks its processes."""
        self._template = template
        self.port = free_port()
        self.database = folder / "jobs.sqlite3"
        self.log = folder / "server.log"
        self.start_s: list[float] = []
        # A killed server cannot remove its temporary files: they are deleted with this folder.
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        self.environment = {
            **{name: os.environ[name] for name in _KEPT if name in os.environ},
            "PYTHONPATH": PYTHON_PATH,
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
        """Start the server with changed settings and wait until it is healthy."""
        began = time.monotonic()
        await self.spawn(**settings)
        await self.wait_until_settled()
        assert self.is_running, self.log_end()
        self.start_s.append(time.monotonic() - began)

    async def wait_until_settled(self) -> None:
        """Wait until the server is healthy or has ended."""
        await poll_until(self._settled, _START_TIMEOUT_S, _POLL_INTERVAL_S)

    async def _settled(self) -> bool:
        return not self.is_running or await is_healthy(self.port)

    async def spawn(self, **settings: str) -> None:
        """Start the server without waiting."""
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
        """Kill the server with SIGKILL; `orphans` checks its children later."""
        self._orphans += [pid for pid in (self.store_pid, self.engine_pid) if pid is not None]
        os.kill(self.pid, signal.SIGKILL)
        await self.wait_for_exit()

    async def stop(self) -> int:
        """End the server with SIGTERM; return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return await self.wait_for_exit()

    async def wait_for_exit(self) -> int:
        """Wait until the server has ended; return its exit code."""
        assert self._process is not None
        async with asyncio.timeout(_END_TIMEOUT_S):
            return await self._process.wait()

    async def close(self) -> None:
        """Kill the server if it is running."""
        if self.is_running:
            await self.kill()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def orphans(self) -> list[int]:
        """Return the children that outlived their killed servers, after giving them time to end."""
        with suppress(TimeoutError):
            await wait_until(lambda: not any(map(alive, self._orphans)), _ORPHAN_TIMEOUT_S)
        self._orphans = [pid for pid in self._orphans if alive(pid)]
        return self._orphans

    def log_end(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


async def is_healthy(port: int) -> bool:
    """Request /health once, without the cost of an HTTP client."""
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
