"""Model output is shown as text: markup, bidirectional marks, and a megabyte without spaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import ConsolePage, open_console, run_scripted_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARKUP = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    "<svg onload='window.hacked = 1'></svg><a href='javascript:window.hacked=1'>x</a>"
    "</div></pre><style>* { display: none }</style><!-- &lt;b&gt; &amp; "
    '"><iframe srcdoc="<script>parent.hacked = 1</script>">'
)
MARKS = "\u202eturned round\u202c \u2066isolated\u2069 \u200f\u200d\ufeff e\u0301\u0301\u0301 🏴‍☠️"
LONG = 1_000_000
KINDS = ("RunPod job", "Completion", "Chat")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with run_scripted_server(
        tmp_path_factory.mktemp("hostile"),
        {"when": "markup", "pieces": [MARKUP, MARKS]},
        {"when": "megabyte", "pieces": ["a" * LONG]},
        {"when": "crumbs", "pieces": ["b" * 1000], "repeat": LONG // 1000},
        {"when": "error", "pieces": ["x", {"error": MARKUP}]},
    ) as running_server:
        yield running_server


async def check_harmless(console: ConsolePage) -> None:
    """Check that no part of the markup was run, loaded or turned into an element."""
    assert await console.page.evaluate("window.hacked") is None
    for name in ("main script", "main style", "main img", "main iframe"):
        await expect(console.page.locator(name)).to_have_count(0)
    assert await console.page.locator("main a[href^='javascript']").count() == 0
    console.check()


@pytest.mark.parametrize("kind", KINDS)
async def test_markup_is_text_in_every_view(
    browser: Browser, server: EmulatorProcess, kind: str
) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        await console.ask(f"markup {MARKUP}", kind)
        await console.wait_for_end()
        assert await console.text.text_content() == MARKUP + MARKS
        await console.page.get_by_role("switch", name="Boundaries").click()
        await expect(console.page.locator(".delta").first).to_contain_text(MARKUP)
        for name in ("Verdict", "Changes", "JSON"):
            await console.tab(name)
        await expect(console.page.locator(".json:visible")).to_contain_text("<script>")
        await check_harmless(console)


async def test_job_of_markup_is_text(browser: Browser, server: EmulatorProcess) -> None:
    async with open_console(server, browser) as console, server.client() as client:
        job_input = {"prompt": f"error {MARKUP}"}
        job_id = (await client.post("/run", json={"input": job_input})).json()["id"]
        await client.get(f"/status-sync/{job_id}")
        await console.go(f"jobs/{job_id}")
        failure = console.page.locator(".detail .form-error")
        await expect(failure).to_contain_text("<script>")
        await expect(console.page.locator("tbody")).to_contain_text("<script>")
        await expect(await console.tab("Input")).to_contain_text("<script>")
        await check_harmless(console)


@pytest.mark.parametrize("prompt", ["a megabyte", "crumbs of one"])
async def test_megabyte_without_a_space_stays_in_its_place(
    browser: Browser, server: EmulatorProcess, prompt: str
) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        await console.page.get_by_label("max_tokens", exact=True).fill("100000")
        await console.ask(prompt, "Completion")
        await console.wait_for_end()
        width = "document.documentElement.scrollWidth <= window.innerWidth"
        assert await console.page.evaluate(width)
        visible_text = await console.text.text_content()
        assert visible_text is not None
        assert 0 < len(visible_text) <= 22_000
        cut = console.page.locator(".stream-cut:visible")
        await expect(cut).to_contain_text(
            f"{LONG - len(visible_text):,} characters above are hidden"
        )
        await console.page.get_by_role("button", name="Show more").click()
        await expect(cut).to_contain_text("characters above are hidden")
        await console.tab("JSON")
        for name in ("Verdict", "Changes", "Answer"):
            await console.tab(name)
            assert await console.page.evaluate(width), name
        # The page still responds.
        async with asyncio.timeout(10):
            await console.tab("JSON")
        console.check()
