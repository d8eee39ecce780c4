"""Each screen works with screen readers, with low vision and without a mouse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.integration.emulator.processes import ROOT, EmulatorProcess
from tests.long.console.browser import DESK, PHONE, ConsolePage, open_console, run_scripted_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

AXE = ROOT / "tests/clients/node_modules/axe-core/axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with run_scripted_server(
        tmp_path_factory.mktemp("accessibility"),
        {"when": "for ever", "pieces": [{"text": "on ", "delay_ms": 30}], "repeat": -1},
        {"when": "broken", "pieces": ["x", {"error": "the runtime said no"}]},
        {"pieces": ["Assistant: ", "yes", "<|im_end|>"]},
    ) as running_server:
        yield running_server


async def examine(console: ConsolePage, screen: str) -> None:
    """Check that the current screen has no serious or critical violation."""
    if not await console.page.evaluate("'axe' in window"):
        await console.page.evaluate(AXE.read_text())
    violations: list[dict[str, Any]] = await console.page.evaluate(
        f"axe.run(document, {{runOnly: {json.dumps(RULES)}}}).then((told) => told.violations)"
    )
    bad = [
        (each["id"], each["impact"], [node["html"] for node in each["nodes"]][:3])
        for each in violations
        if each["impact"] in ("serious", "critical")
    ]
    assert bad == [], screen


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_no_screen_has_a_serious_issue(
    browser: Browser, server: EmulatorProcess, tmp_path: Path, theme: str, size: dict[str, int]
) -> None:
    async with (
        open_console(server, browser, viewport=size, color_scheme=theme) as console,
        server.client() as client,
    ):
        page = console.page
        await console.go()
        await examine(console, "playground, empty")
        for summary in await page.locator("summary:visible").all():
            await summary.click()
        await page.get_by_role("switch", name="Boundaries").click()
        await page.get_by_role("switch", name="Timing").click()
        await page.get_by_label("temperature", exact=True).fill("9")
        await console.ask("x")
        await console.wait_for_end("Failed")
        await examine(console, "playground, failed")
        await page.get_by_label("temperature", exact=True).fill("")
        await console.ask("x", "Chat")
        await console.wait_for_end()
        await examine(console, "playground, answered")
        for name in ("Verdict", "Changes", "JSON"):
            await console.tab(name)
            await examine(console, name)
        await page.get_by_role("button", name="API key").click()
        await examine(console, "dialog")
        await page.keyboard.press("Escape")
        for prompt in ("broken", "for ever"):
            job_id = (await client.post("/run", json={"input": {"prompt": prompt}})).json()["id"]
            await page.goto(f"{console.url}/#/jobs/{job_id}")
            word = "Failed" if prompt == "broken" else "Running"
            await page.locator(".detail .badge", has_text=word).first.wait_for()
            await examine(console, f"a job: {prompt}")
        await page.goto(f"{console.url}/#/jobs")
        await page.locator("tbody tr").first.wait_for()
        await examine(console, "jobs")
        await client.post(f"/cancel/{job_id}")
        await page.goto(f"{console.url}/#/batches")
        await page.get_by_role("button", name="Try three lines").click()
        await page.locator(".batch .badge", has_text="completed").first.wait_for()
        await examine(console, "batches")
        await page.goto(f"{console.url}/#/workers")
        await page.locator("tbody tr").first.wait_for()
        await examine(console, "workers")
        await page.goto(f"{console.url}/#/engine")
        await page.locator(".able li").nth(3).wait_for()
        await examine(console, "engine")
        console.check()


async def test_controls_are_reachable_by_keyboard(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console:
        page = console.page
        await console.go()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        completion_kind = page.get_by_role("radio", name="Completion")
        await page.get_by_role("radio", name="RunPod job").focus()
        await page.keyboard.press("ArrowRight")
        await expect(completion_kind).to_be_checked()
        await page.get_by_label("Prompt", exact=True).locator("visible=true").last.focus()
        await page.keyboard.type("a prompt")
        await page.keyboard.press("Control+Enter")
        await console.wait_for_end()
        await page.get_by_role("tab", name="Answer").focus()
        for name in ("Verdict", "Changes", "JSON", "Wire", "Answer"):
            await page.keyboard.press("ArrowRight")
            await expect(page.get_by_role("tab", name=name)).to_be_focused()
            await expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
        await page.get_by_role("link", name="Jobs", exact=True).focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("main")).to_be_focused()
        await expect(page).to_have_title("Jobs · worker-rkllm")
        console.check()


async def test_theme_is_the_systems_until_one_is_chosen(
    browser: Browser, server: EmulatorProcess
) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    async with open_console(server, browser, color_scheme="dark") as console:
        await console.go()
        dark = await console.page.evaluate(background)
        await console.page.get_by_role("button", name="Theme: system").click()
        light = await console.page.evaluate(background)
        assert light != dark
        await console.page.reload()
        assert await console.page.evaluate(background) == light
        await console.page.get_by_role("button", name="Theme: light").click()
        assert await console.page.evaluate(background) == dark
        console.check()


async def test_layout_does_not_shift_while_an_answer_streams(
    browser: Browser, server: EmulatorProcess
) -> None:
    watch = """
    window.shift = 0;
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
    }).observe({ type: "layout-shift", buffered: true });
    """
    async with open_console(server, browser, init=watch) as console:
        await console.go()
        await console.page.get_by_label("max_tokens", exact=True).fill("40")
        await console.ask("for ever", "Completion")
        await console.wait_for_end()
        assert await console.page.evaluate("window.shift") < 0.1
        console.check()
