"""`/docs` in a browser: an operation is opened, sent, and answered, all within this server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import Visit, scripted, visit

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "a-key-of-the-tests"
PIECES = ["It ", "is ", "Paris."]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with scripted(tmp_path_factory.mktemp("docs"), {"pieces": PIECES}) as found:
        yield found


async def open_docs(here: Visit, link: str = "") -> None:
    """Open the page and wait for its operations; `link` is a deep link to one."""
    await here.page.goto(f"{here.url}/docs{link}")
    await here.page.locator(".opblock").first.wait_for()


def operation(here: Visit, tag: str, name: str) -> Locator:
    return here.page.locator(f"#operations-{tag}-{name}")


async def execute(block: Locator) -> Locator:
    """Send the example and return the server's answer."""
    await block.get_by_role("button", name="Execute").click()
    answer = block.locator(".live-responses-table .response")
    await answer.wait_for()
    return answer


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_operation_is_opened_and_executed(
    browser: Browser, server: EmulatorProcess, scheme: str
) -> None:
    async with visit(server, browser, color_scheme=scheme) as here:
        await open_docs(here)
        block = operation(here, "Jobs", "postRunsync")
        await block.locator(".opblock-summary-control").click()
        assert here.page.url.endswith("#/Jobs/postRunsync")
        answer = await execute(block)
        await expect(answer.locator(".response-col_status")).to_contain_text("200")
        await expect(answer).to_contain_text('"status": "COMPLETED"')
        is_dark = "document.documentElement.classList.contains('dark-mode')"
        assert await here.page.evaluate(is_dark) is (scheme == "dark")
        # A violation of the policy is an error on the browser's console.
        here.check()


async def test_policy_blocks_what_is_not_of_the_server(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with visit(server, browser) as here:
        await open_docs(here)
        await here.page.evaluate("fetch('http://127.0.0.2:9/').catch(() => null)")
        assert "Content Security Policy" in str(here.complaints)


@pytest.mark.parametrize("link", ["OpenAI/postV1ChatCompletions", "Aliases/postV3Completions"])
async def test_deep_link_opens_its_operation(
    browser: Browser, server: EmulatorProcess, link: str
) -> None:
    async with visit(server, browser) as here:
        await open_docs(here, f"#/{link}")
        block = operation(here, *link.split("/"))
        await expect(block.get_by_role("button", name="Execute")).to_be_visible()
        here.check()


async def test_rarely_used_tags_start_closed(browser: Browser, server: EmulatorProcess) -> None:
    async with visit(server, browser) as here:
        await open_docs(here)
        await expect(operation(here, "OpenAI", "postV1Completions")).to_be_visible()
        await expect(here.page.locator("#operations-tag-Workers")).to_be_visible()
        assert await here.page.locator("[id^=operations-Workers-]").count() == 0


async def test_streamed_example_shows_its_events(browser: Browser, server: EmulatorProcess) -> None:
    async with visit(server, browser) as here:
        await open_docs(here, "#/OpenAI/postV1ChatCompletions")
        block = operation(here, "OpenAI", "postV1ChatCompletions")
        await block.locator(".examples-select select").select_option("streamed")
        answer = await execute(block)
        await expect(answer).to_contain_text("data: [DONE]")
        text = await answer.locator(".highlight-code").first.inner_text()
        lines = [line.removeprefix("data: ") for line in text.splitlines() if '"choices"' in line]
        said = [json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines]
        assert "".join(said) == "".join(PIECES)
        here.check()


async def test_key_authorizes_what_is_executed(browser: Browser, tmp_path: Path) -> None:
    async with (
        scripted(tmp_path, {"pieces": PIECES}, environment={"API_KEYS": KEY}) as server,
        visit(server, browser) as here,
    ):
        await open_docs(here, "#/OpenAI/postV1Completions")
        block = operation(here, "OpenAI", "postV1Completions")
        answer = await execute(block)
        await expect(answer.locator(".response-col_status")).to_contain_text("401")
        await here.page.get_by_role("button", name="Authorize", exact=True).click()
        dialog = here.page.locator(".modal-ux")
        # The key can be given in two ways; this is `Authorization: Bearer`.
        await dialog.locator("#auth-bearer-value").fill(KEY)
        await dialog.get_by_role("button", name="Apply credentials").first.click()
        await dialog.locator(".close-modal").click()
        await block.get_by_role("button", name="Execute").click()
        await expect(answer.locator(".response-col_status")).to_contain_text("200")
        await expect(answer).to_contain_text("It is Paris.")
        # The browser logs each 401 itself.
        assert all("401" in each for each in here.complaints)
        assert here.outside == []


async def test_key_entered_in_the_console_is_used(browser: Browser, tmp_path: Path) -> None:
    async with (
        scripted(tmp_path, {"pieces": PIECES}, environment={"API_KEYS": KEY}) as server,
        visit(server, browser) as here,
    ):
        await here.page.goto(f"{here.url}/")
        await here.page.get_by_label("Key", exact=True).fill(KEY)
        await here.page.keyboard.press("Enter")
        await here.page.get_by_label("temperature", exact=True).wait_for()
        await here.page.get_by_role("link", name="API", exact=True).click()
        await here.page.locator(".opblock").first.wait_for()
        block = operation(here, "Jobs", "postRunsync")
        await block.locator(".opblock-summary-control").click()
        answer = await execute(block)
        await expect(answer.locator(".response-col_status")).to_contain_text("200")
        assert here.outside == []


async def test_console_links_to_the_docs_and_back(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with visit(server, browser) as here:
        await here.go()
        await here.page.get_by_role("link", name="API", exact=True).click()
        await here.page.locator(".opblock").first.wait_for()
        pages = here.page.get_by_role("navigation", name="Pages")
        await pages.get_by_role("link", name="Console", exact=True).click()
        await here.page.get_by_label("temperature", exact=True).wait_for()
        here.check()
