"""The tab with the exchange as it was on the wire, in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import DESK, PHONE, ConsolePage, open_console, run_scripted_server
from tests.long.console.test_accessibility import examine

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARKUP = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\u202eturned"
PATHS = {
    "RunPod job": "/v2/default/run",
    "Completion": "/v1/completions",
    "Chat": "/v1/chat/completions",
    "Response": "/v1/responses",
    "Message": "/v1/messages",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with run_scripted_server(
        tmp_path_factory.mktemp("wire"),
        {"when": "markup", "pieces": [MARKUP]},
        {"pieces": [{"text": f"word{at} ", "delay_ms": 20} for at in range(8)]},
        environment={"API_KEYS": "secret-key"},
    ) as running_server:
        yield running_server


async def open_with_key(console: ConsolePage) -> None:
    await console.page.add_init_script("sessionStorage.setItem('api-key', 'secret-key')")
    await console.go()


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_wire_shows_the_exchange_of_every_kind(
    browser: Browser, server: EmulatorProcess, size: dict[str, int]
) -> None:
    async with open_console(server, browser, viewport=size) as console:
        await open_with_key(console)
        panel = await console.tab("Wire")
        exchanges = panel.locator(".exchange")
        for kind, path in PATHS.items():
            await console.ask("hello", kind)
            await expect(exchanges.first.locator("h2")).to_have_text(f"POST {path}")
            await expect(exchanges).to_have_count(3 if kind == "RunPod job" else 1)
            await expect(exchanges.last).to_contain_text("Complete: ")
            await expect(exchanges.first.locator(".badge")).to_contain_text("200")
            await exchanges.first.locator("summary", has_text="Request").click()
            await expect(exchanges.first).to_contain_text("authorization: (the key)")
            await expect(panel).not_to_contain_text("secret-key")
            parts = exchanges.nth(1 if kind == "RunPod job" else 0).locator(".wire-part")
            assert await parts.count() > 3, kind
            await expect(parts.last).to_contain_text(re.compile(r"^\+[\d.,]+ ms[\d.]+ k?B"))
            if kind == "RunPod job":
                await expect(exchanges.nth(1).locator("h2")).to_contain_text("/console/jobs/")
                await expect(exchanges.nth(2).locator("h2")).to_contain_text("/v2/default/status/")
                await expect(exchanges.nth(2)).to_contain_text('"COMPLETED"')
            width = "document.documentElement.scrollWidth <= window.innerWidth"
            assert await console.page.evaluate(width)
        await examine(console, "wire")
        console.check()


async def test_wire_is_bounded_and_can_be_copied(browser: Browser, server: EmulatorProcess) -> None:
    chunks = [{"object": "text_completion", "choices": [{"text": f"{at} "}]} for at in range(699)]
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    async with open_console(
        server, browser, permissions=["clipboard-read", "clipboard-write"]
    ) as console:
        await open_with_key(console)
        await console.page.route(
            "**/v1/completions",
            lambda route: route.fulfill(
                body="".join([*events, "data: [DONE]\n\n"]), content_type="text/event-stream"
            ),
        )
        await console.ask("long", "Completion")
        await console.wait_for_end()
        panel = await console.tab("Wire")
        await expect(panel).to_contain_text("200 earlier parts are not kept")
        await expect(panel.locator(".wire-part")).to_have_count(500)
        await expect(panel.locator(".wire-part").last).to_contain_text("data: [DONE]\\n\\n")
        await panel.get_by_role("button", name="Copy").click()
        await expect(console.page.locator(".toast")).to_contain_text("copied")
        text = await console.page.evaluate("navigator.clipboard.readText()")
        assert "secret-key" not in text
        assert "POST /v1/completions\n" in text
        assert text.count("data: ") == 500
        console.check()


async def test_markup_on_the_wire_is_text(browser: Browser, server: EmulatorProcess) -> None:
    async with open_console(server, browser) as console:
        await open_with_key(console)
        await console.ask(f"markup {MARKUP}", "Chat")
        await console.wait_for_end()
        panel = await console.tab("Wire")
        await panel.locator("summary", has_text="Request").click()
        await expect(panel.locator("pre").first).to_contain_text("<script>")
        await expect(panel.locator(".wire-parts")).to_contain_text("\\u202eturned")
        assert await console.page.evaluate("window.hacked") is None
        await expect(console.page.locator("main :is(script, img, iframe)")).to_have_count(0)
        console.check()
