"""A browser that opens the console, and checks of its errors and requests."""

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
    # Needed when several browsers run in containers.
    "--disable-dev-shm-usage",
)
DESK = {"width": 1360, "height": 860}
PHONE = {"width": 390, "height": 844}
# A busy machine may take this long to draw an element.
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


@asynccontextmanager
async def run_scripted_server(
    folder: Path, *answers: dict[str, Any], environment: Mapping[str, str] | None = None
) -> AsyncIterator[EmulatorProcess]:
    """Start a server whose engine generates these answers."""
    path = folder / "script.json"
    path.write_text(json.dumps({"answers": answers, "context_length": 100_000}))
    defaults = {"MODEL_PATH": str(path), "DRAIN_S": "0"}
    async with run_emulator({**defaults, **(environment or {})}, "--port", "0") as server:
        await server.wait_until_listening()
        yield server


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start Debian's browser with a separate profile."""
    executable = shutil.which("chromium")
    if executable is None:
        pytest.fail("the console's tests need Debian's package chromium", pytrace=False)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            await browser.close()


class ConsolePage:
    """The console of one server in one tab; every test ends with `check`."""

    def __init__(self, page: Page, server: EmulatorProcess) -> None:
        self.page = page
        self.url = f"http://127.0.0.1:{server.port}"
        self.browser_errors: list[str] = []
        self.external_urls: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: self._add_message(message.type, message.text))
        page.on("pageerror", lambda error: self._add_message("error", str(error)))
        page.on("request", lambda request: self._add_request(request.url))

    def _add_message(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.browser_errors.append(text)

    def _add_request(self, url: str) -> None:
        if not url.startswith((f"{self.url}/", "blob:", "data:")):
            self.external_urls.append(url)

    def check(self) -> None:
        """Check that the browser logged no error and sent no request to another server."""
        assert self.browser_errors == []
        assert self.external_urls == []

    async def go(self, screen: str = "playground") -> None:
        await self.page.goto(f"{self.url}/#/{screen}")
        if screen == "playground":
            # The forms are shown once the page has loaded the server's description.
            await self.page.get_by_label("temperature", exact=True).wait_for()

    async def ask(self, prompt: str, kind: str = "RunPod job") -> None:
        """Fill in a prompt of a kind and run it."""
        await self.page.locator(".choice").get_by_text(kind, exact=True).click()
        box = "Content" if kind in ("Chat", "Response", "Message") else "Prompt"
        await self.page.get_by_label(box, exact=True).locator("visible=true").last.fill(prompt)
        await self.page.locator(".button.primary", has_text="Run").click()

    async def wait_for_end(self, word: str = "Done") -> None:
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
async def open_console(
    server: EmulatorProcess, browser: Browser, *, init: str = "", **options: Any
) -> AsyncIterator[ConsolePage]:
    """Open a tab in a separate context; the script `init` runs before the page."""
    context = await browser.new_context(**{"viewport": DESK, **options})
    try:
        page = await context.new_page()
        if init:
            await page.add_init_script(init)
        yield ConsolePage(page, server)
    finally:
        await context.close()
