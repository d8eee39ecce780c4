"""A foreign web page in a real Chromium, against a server with a queued job.

The page is on another origin, or has rebound its name: it came from the attacker's server, and now
its name leads to the victim. It tries every way of sending a request that a page has.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import ARGUMENTS, run_scripted_server
from tests.long.security.attacker import EVIL_NAME, WAYS, Attacker, attacker, script_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

# The browser refuses these without sending a request.
SENDS_NOTHING = {"other-origin": {"fetch-same-origin", "fetch-navigate"}}
SENDS_NOTHING["rebound-name"] = {"fetch-navigate"}
# The log is complete when it has not grown for this long.
QUIET_S = 0.3
QUIET_TIMEOUT_S = 20.0
# Marks the test's own requests, to distinguish them from those of the page.
OWN = {"x-request-id": "the-test"}


@dataclass(frozen=True, slots=True)
class Scene:
    """The victim, the attacker and the browser that visits both."""

    server: EmulatorProcess
    evil: Attacker
    browser: Browser
    job: str

    @asynccontextmanager
    async def page(self, position: str) -> AsyncIterator[Page]:
        """Open the attacker's page; a rebound name leads to the victim once it is open."""
        self.evil.is_rebound = False
        context = await self.browser.new_context()
        try:
            page = await context.new_page()
            rebound = position == "rebound-name"
            await page.goto(self.base(position) if rebound else self.evil.site_url)
            self.evil.is_rebound = True
            yield page
        finally:
            await context.close()

    def base(self, position: str) -> str:
        """Return the victim's address as the page names it."""
        host = EVIL_NAME if position == "rebound-name" else "127.0.0.1"
        return f"http://{host}:{self.server.port}"

    async def run(self, way: str, position: str) -> list[str]:
        """Have the page try one way; return what it could read."""
        async with self.page(position) as page:
            values = {"way": way, "job": self.job, "site": self.evil.site_url}
            values["base"] = self.base(position)
            readable: list[str] = await page.evaluate(script_of(way), values)
            await self.quiet()
        return readable

    async def quiet(self) -> None:
        """Wait until the server logs nothing more."""
        async with asyncio.timeout(QUIET_TIMEOUT_S):
            before = -1
            while len(self.server.lines) != before:
                before = len(self.server.lines)
                await asyncio.sleep(QUIET_S)

    def requests(self, since: int) -> list[tuple[str, int]]:
        """Return the requests that have reached the server since a line of its log."""
        lines = [json.loads(line) for line in self.server.lines[since:] if line.startswith("{")]
        # A new window asks for the icon of the page that it shows.
        ended = [each for each in lines if "status" in each and each.get("path") != "/favicon.ico"]
        return [
            (f"{each['method']} {each['path']}", each["status"])
            for each in ended
            if each["request_id"] != OWN["x-request-id"]
        ]

    async def jobs(self) -> list[tuple[str, str]]:
        """Return the jobs of the attacked endpoint with their states."""
        async with self.server.client() as client:
            response = await client.get("/v2/other/requests", headers=OWN)
        requests: Any = response.json()["requests"]
        return [(each["id"], each["status"]) for each in requests]

    async def counts(self, endpoint: str) -> int:
        """Return how many jobs an endpoint has had."""
        async with self.server.client() as client:
            response = await client.get(f"/v2/{endpoint}/health", headers=OWN)
        health: Any = response.json()
        return sum(health["jobs"].values())


@asynccontextmanager
async def scene(folder: Path, *, cors: bool = False) -> AsyncIterator[Scene]:
    chromium = shutil.which("chromium")
    assert chromium is not None, "this test needs Debian's package chromium"
    async with attacker() as evil:
        # Calls of workers are logged at DEBUG.
        environment = {"LOG_LEVEL": "DEBUG", **({"CORS_ORIGINS": evil.site_url} if cors else {})}
        async with run_scripted_server(folder, {}, environment=environment) as server:
            async with server.client() as client:
                sent = await client.post("/v2/other/run", json={"input": {"prompt": "kept"}})
            proxy = f"--proxy-server=socks5://127.0.0.1:{evil.resolver_port}"
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(
                    executable_path=chromium, args=[*ARGUMENTS, proxy]
                )
                yield Scene(server, evil, browser, sent.json()["id"])
                await browser.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def victim(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(tmp_path_factory.mktemp("victim")) as attack_scene:
        yield attack_scene


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("position", ["other-origin", "rebound-name"])
async def test_page_starts_leases_cancels_and_reads_nothing(
    victim: Scene, way: str, position: str
) -> None:
    since = len(victim.server.lines)
    readable = await victim.run(way, position)
    requests = victim.requests(since)
    assert readable == []
    # 403 by the check of hosts and origins, 400 to a WebSocket handshake.
    assert [each for each in requests if each[1] not in (400, 403)] == []
    sent = [path for path, _ in requests if f"/{way}" in path]
    assert bool(sent) == (way not in SENDS_NOTHING[position])
    assert await victim.jobs() == [(victim.job, "IN_QUEUE")]
    assert await victim.counts(way) == 0


async def test_page_named_by_cors_origins_reads_and_runs(tmp_path: Path) -> None:
    async with scene(tmp_path, cors=True) as attack_scene:
        readable = await attack_scene.run("fetch-cors", "other-origin")
        assert any("/v1/models" in each for each in readable)
        assert any(each.endswith("/run") for each in readable)
        assert await attack_scene.counts("fetch-cors") > 1
