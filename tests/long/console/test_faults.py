"""Faults of the next request, and what they do to the exchange on the wire."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import PHONE, ConsolePage, open_console, run_scripted_server
from tests.long.console.test_accessibility import examine

pytestmark = pytest.mark.asyncio(loop_scope="module")

# The fault, the state of the run, what the page says, and the status badge.
STREAM_FAULTS = [
    ("drop-after=2", "Failed", r"^The connection broke \(", "200"),
    ("cut-inside=2", "Failed", r"^The connection broke in the middle of an event \(", "200"),
    ("end-after=2", "Failed", "^The connection ended before the answer did", "200"),
    ("malformed-event=1", "Failed", "^The answer cannot be read: ", "200"),
    ("error-event=1", "Failed", "failed on purpose", "200"),
    ("reset", "Failed", "^The server cannot be reached", ""),
    ("html-502", "Failed", "Bad Gateway", "502"),
    ("status=429; retry-after=2", "Failed", "failed on purpose", "429"),
    ("comment, crlf, split-character, bom, id-and-retry", "Done", "", "200"),
    ("split-bytes, cr, done-twice", "Done", "", "200"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with run_scripted_server(
        tmp_path_factory.mktemp("faults"),
        {"pieces": [{"text": f"🦀{at} ", "delay_ms": 5} for at in range(4)]},
        environment={"FAULTS_PER_REQUEST": "on"},
    ) as running_server:
        yield running_server


def fault_field(console: ConsolePage) -> Locator:
    return console.page.get_by_label("Fault of the next request")


async def test_wire_shows_what_each_fault_broke(browser: Browser, server: EmulatorProcess) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        for faults, state, message, status in STREAM_FAULTS:
            await fault_field(console).fill(faults)
            await console.ask("hello", "Chat")
            await console.wait_for_end(state)
            panel = await console.tab("Wire")
            await expect(panel).to_contain_text(f"This request asks for a fault: {faults}")
            await expect(panel.locator(".badge")).to_have_text(re.compile(f"^{status}"))
            failure = panel.locator(".form-error, .wrong").locator("visible=true")
            if message:
                await expect(failure).to_have_count(1 if status else 2)
                await expect(failure.last).to_have_text(re.compile(message))
            else:
                await expect(failure).to_have_count(0)
            await console.tab("Answer")
            if state == "Done":
                await expect(console.text).to_have_text("🦀0 🦀1 🦀2 🦀3 ")
        # The browser reports what was broken on purpose.
        console.browser_errors.clear()
        console.check()


async def test_broken_answer_of_json_is_shown_up_to_the_break(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        await fault_field(console).fill("truncated-body")
        await console.ask("hello", "RunPod job")
        await console.wait_for_end("Failed")
        panel = await console.tab("Wire")
        await expect(panel.locator(".wrong")).to_have_text(re.compile(r"^The connection broke \("))
        await expect(panel.locator(".wire-part")).to_contain_text('{"id":"')
        console.browser_errors.clear()
        console.check()


async def test_faults_are_offered_with_their_meaning(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser, viewport=PHONE) as console:
        await console.go()
        await console.page.locator(".choice").get_by_text("Chat", exact=True).click()
        choice = console.page.get_by_label("Add a fault")
        for name in ("status", "retry-after", "truncated-json"):
            await choice.select_option(label=name)
        await expect(fault_field(console)).to_have_value(
            "status=503; retry-after=2; truncated-json"
        )
        note = console.page.locator("li", has_text="truncated-json: The body is half as long")
        await expect(note).to_contain_text("No effect: this request gets a stream.")
        await console.page.get_by_role("switch", name="Stream").click()
        await expect(note).not_to_contain_text("No effect")
        await examine(console, "faults")
        await fault_field(console).fill("nonsense")
        await console.ask("hello", "Chat")
        await console.wait_for_end("Failed")
        await expect(console.page.locator(".request .form-error")).to_contain_text("is not a fault")
        console.browser_errors.clear()
        console.check()
