"""A browser on the console, and what it must never do while it is there."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, async_playwright, expect

from tests.integration.emulator.processes import EmulatorProcess, run_emulator

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # As where several run side by side in containers.
    "--disable-dev-shm-usage",
)
DESK = {"width": 1360, "height": 860}
PHONE = {"width": 390, "height": 844}
# A busy machine may take so long to show what is there.
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


@asynccontextmanager
async def scripted(
    folder: Path, *answers: dict[str, Any], environment: Mapping[str, str] | None = None
) -> AsyncIterator[EmulatorProcess]:
    """Start a server whose engine says these answers."""
    path = folder / "script.json"
    path.write_text(json.dumps({"answers": answers, "context_length": 100_000}))
    always = {"MODEL_PATH": str(path), "DRAIN_S": "0"}
    async with run_emulator({**always, **(environment or {})}, "--port", "0") as server:
        await server.wait_until_listening()
        yield server


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start Debian's browser, with a profile of its own."""
    found = shutil.which("chromium")
    if found is None:
        pytest.fail("the console's tests need Debian's package chromium", pytrace=False)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            await browser.close()


class Visit:
    """One tab on one server; `check` is what holds of every visit."""

    def __init__(self, page: Page, server: EmulatorProcess) -> None:
        self.page = page
        self.url = f"http://127.0.0.1:{server.port}"
        self.complaints: list[str] = []
        self.outside: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self._hear("error", str(error)))
        page.on("request", lambda request: self._see(request.url))

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _see(self, url: str) -> None:
        if not url.startswith((f"{self.url}/", "blob:", "data:")):
            self.outside.append(url)

    def check(self) -> None:
        """Nothing was complained of, and nobody else was asked for anything."""
        assert self.complaints == []
        assert self.outside == []

    async def go(self, screen: str = "playground") -> None:
        await self.page.goto(f"{self.url}/#/{screen}")
        if screen == "playground":
            # Its forms are there once the server has said what may be asked.
            await self.page.get_by_label("temperature", exact=True).wait_for()

    async def ask(self, prompt: str, kind: str = "RunPod job") -> None:
        """Fill in a prompt of a kind and run it."""
        await self.page.locator(".choice label", has_text=kind).click()
        box = "Content" if kind == "Chat" else "Prompt"
        await self.page.get_by_label(box, exact=True).locator("visible=true").last.fill(prompt)
        await self.page.locator(".button.primary", has_text="Run").click()

    async def ended(self, word: str = "Done") -> None:
        await self.page.locator(".answer .badge", has_text=word).first.wait_for()

    @property
    def text(self) -> Locator:
        return self.page.locator(".stream-text:visible")

    async def fact(self, name: str) -> str:
        rows = self.page.locator(".facts > div", has=self.page.get_by_text(name, exact=True))
        return await rows.locator("dd").inner_text()

    async def tab(self, name: str) -> Locator:
        await self.page.get_by_role("tab", name=name).click()
        return self.page.locator("[role=tabpanel]:visible")


@asynccontextmanager
async def visit(
    server: EmulatorProcess, browser: Browser, *, init: str = "", **options: Any
) -> AsyncIterator[Visit]:
    """Open a tab in a context of its own; `init` is run in it before the page is."""
    context = await browser.new_context(**{"viewport": DESK, **options})
    try:
        page = await context.new_page()
        if init:
            await page.add_init_script(init)
        yield Visit(page, server)
    finally:
        await context.close()
