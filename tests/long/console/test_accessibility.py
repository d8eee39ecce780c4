"""Each screen for those who do not see it, or not well, or use no mouse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.integration.emulator.processes import ROOT, EmulatorProcess
from tests.long.console.browser import DESK, PHONE, Visit, scripted, visit

pytestmark = pytest.mark.asyncio(loop_scope="module")

AXE = ROOT / "tests/clients/node_modules/axe-core/axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with scripted(
        tmp_path_factory.mktemp("accessibility"),
        {"when": "for ever", "pieces": [{"text": "on ", "delay_ms": 30}], "repeat": -1},
        {"when": "broken", "pieces": ["x", {"error": "the runtime said no"}]},
        {"pieces": ["Assistant: ", "yes", "<|im_end|>"]},
    ) as found:
        yield found


async def examine(here: Visit, where: str) -> None:
    """No serious or critical issue is found in what is shown."""
    if not await here.page.evaluate("'axe' in window"):
        await here.page.evaluate(AXE.read_text())
    found: list[dict[str, Any]] = await here.page.evaluate(
        f"axe.run(document, {{runOnly: {json.dumps(RULES)}}}).then((told) => told.violations)"
    )
    bad = [
        (each["id"], each["impact"], [node["html"] for node in each["nodes"]][:3])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert bad == [], where


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_no_screen_has_a_serious_issue(
    browser: Browser, server: EmulatorProcess, tmp_path: Path, theme: str, size: dict[str, int]
) -> None:
    async with (
        visit(server, browser, viewport=size, color_scheme=theme) as here,
        server.client() as client,
    ):
        page = here.page
        await here.go()
        await examine(here, "playground, empty")
        for summary in await page.locator("summary").all():
            await summary.click()
        await page.get_by_role("switch", name="Boundaries").click()
        await page.get_by_role("switch", name="Timing").click()
        await page.get_by_label("temperature", exact=True).fill("9")
        await here.ask("x")
        await here.ended("Failed")
        await examine(here, "playground, failed")
        await page.get_by_label("temperature", exact=True).fill("")
        await here.ask("x", "Chat")
        await here.ended()
        await examine(here, "playground, answered")
        for name in ("Verdict", "Changes", "JSON"):
            await here.tab(name)
            await examine(here, name)
        await page.get_by_role("button", name="API key").click()
        await examine(here, "dialog")
        await page.keyboard.press("Escape")
        for prompt in ("broken", "for ever"):
            sent = (await client.post("/run", json={"input": {"prompt": prompt}})).json()["id"]
            await page.goto(f"{here.url}/#/jobs/{sent}")
            word = "Failed" if prompt == "broken" else "Running"
            await page.locator(".detail .badge", has_text=word).first.wait_for()
            await examine(here, f"a job: {prompt}")
        await page.goto(f"{here.url}/#/jobs")
        await page.locator("tbody tr").first.wait_for()
        await examine(here, "jobs")
        await client.post(f"/cancel/{sent}")
        await page.goto(f"{here.url}/#/batches")
        await page.get_by_role("button", name="Try three lines").click()
        await page.locator(".batch .badge", has_text="completed").first.wait_for()
        await examine(here, "batches")
        await page.goto(f"{here.url}/#/workers")
        await page.locator("tbody tr").first.wait_for()
        await examine(here, "workers")
        await page.goto(f"{here.url}/#/engine")
        await page.locator(".able li").nth(3).wait_for()
        await examine(here, "engine")
        here.check()


async def test_everything_is_reached_by_keys(browser: Browser, server: EmulatorProcess) -> None:
    async with visit(server, browser) as here:
        page = here.page
        await here.go()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        kinds = page.get_by_role("radio", name="Completion")
        await page.get_by_role("radio", name="RunPod job").focus()
        await page.keyboard.press("ArrowRight")
        await expect(kinds).to_be_checked()
        await page.get_by_label("Prompt", exact=True).locator("visible=true").last.focus()
        await page.keyboard.type("a prompt")
        await page.keyboard.press("Control+Enter")
        await here.ended()
        await page.get_by_role("tab", name="Answer").focus()
        for name in ("Verdict", "Changes", "JSON", "Answer"):
            await page.keyboard.press("ArrowRight")
            await expect(page.get_by_role("tab", name=name)).to_be_focused()
            await expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
        await page.get_by_role("link", name="Jobs", exact=True).focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("main")).to_be_focused()
        await expect(page).to_have_title("Jobs · worker-rkllm")
        here.check()


async def test_theme_is_the_systems_until_one_is_chosen(
    browser: Browser, server: EmulatorProcess
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    async with visit(server, browser, color_scheme="dark") as here:
        await here.go()
        dark = await here.page.evaluate(ground)
        await here.page.get_by_role("button", name="Theme: system").click()
        light = await here.page.evaluate(ground)
        assert light != dark
        await here.page.reload()
        assert await here.page.evaluate(ground) == light
        await here.page.get_by_role("button", name="Theme: light").click()
        assert await here.page.evaluate(ground) == dark
        here.check()


async def test_nothing_moves_while_an_answer_comes(
    browser: Browser, server: EmulatorProcess
) -> None:
    watch = """
    window.shift = 0;
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
    }).observe({ type: "layout-shift", buffered: true });
    """
    async with visit(server, browser, init=watch) as here:
        await here.go()
        await here.page.get_by_label("max_tokens", exact=True).fill("40")
        await here.ask("for ever", "Completion")
        await here.ended()
        assert await here.page.evaluate("window.shift") < 0.1
        here.check()
