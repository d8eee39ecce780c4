"""Whatever a model says is text: markup, marks that turn writing round, a megabyte in one word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import Visit, scripted, visit

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
    async with scripted(
        tmp_path_factory.mktemp("hostile"),
        {"when": "markup", "pieces": [MARKUP, MARKS]},
        {"when": "megabyte", "pieces": ["a" * LONG]},
        {"when": "crumbs", "pieces": ["b" * 1000], "repeat": LONG // 1000},
        {"when": "error", "pieces": ["x", {"error": MARKUP}]},
    ) as found:
        yield found


async def harmless(here: Visit) -> None:
    """Nothing of it was run, loaded, or became an element."""
    assert await here.page.evaluate("window.hacked") is None
    for name in ("main script", "main style", "main img", "main iframe"):
        await expect(here.page.locator(name)).to_have_count(0)
    assert await here.page.locator("main a[href^='javascript']").count() == 0
    here.check()


@pytest.mark.parametrize("kind", KINDS)
async def test_markup_is_text_in_every_view(
    browser: Browser, server: EmulatorProcess, kind: str
) -> None:
    async with visit(server, browser) as here:
        await here.go()
        await here.ask(f"markup {MARKUP}", kind)
        await here.ended()
        assert await here.text.text_content() == MARKUP + MARKS
        await here.page.get_by_role("switch", name="Boundaries").click()
        await expect(here.page.locator(".delta").first).to_contain_text(MARKUP)
        for name in ("Verdict", "Changes", "JSON"):
            await here.tab(name)
        await expect(here.page.locator(".json:visible")).to_contain_text("<script>")
        await harmless(here)


async def test_job_of_markup_is_text(browser: Browser, server: EmulatorProcess) -> None:
    async with visit(server, browser) as here, server.client() as client:
        given = {"prompt": f"error {MARKUP}"}
        sent = (await client.post("/run", json={"input": given})).json()["id"]
        await client.get(f"/status-sync/{sent}")
        await here.go(f"jobs/{sent}")
        failure = here.page.locator(".detail .form-error")
        await expect(failure).to_contain_text("<script>")
        await expect(here.page.locator("tbody")).to_contain_text("<script>")
        await expect(await here.tab("Input")).to_contain_text("<script>")
        await harmless(here)


@pytest.mark.parametrize("prompt", ["a megabyte", "crumbs of one"])
async def test_megabyte_without_a_space_stays_in_its_place(
    browser: Browser, server: EmulatorProcess, prompt: str
) -> None:
    async with visit(server, browser) as here:
        await here.go()
        await here.page.get_by_label("max_tokens", exact=True).fill("100000")
        await here.ask(prompt, "Completion")
        await here.ended()
        width = "document.documentElement.scrollWidth <= window.innerWidth"
        assert await here.page.evaluate(width)
        shown = await here.text.text_content()
        assert shown is not None
        assert 0 < len(shown) <= 22_000
        cut = here.page.locator(".stream-cut:visible")
        await expect(cut).to_contain_text(f"{LONG - len(shown):,} characters above are hidden")
        await here.page.get_by_role("button", name="Show more").click()
        await expect(cut).to_contain_text("characters above are hidden")
        await here.tab("JSON")
        for name in ("Verdict", "Changes", "Answer"):
            await here.tab(name)
            assert await here.page.evaluate(width), name
        # It still listens.
        async with asyncio.timeout(10):
            await here.tab("JSON")
        here.check()
