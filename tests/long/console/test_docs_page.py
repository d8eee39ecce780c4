"""`/docs` in a browser: an operation is opened, sent, and answered, all within this server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import ConsolePage, open_console, run_scripted_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "a-key-of-the-tests"
PIECES = ["It ", "is ", "Paris."]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with run_scripted_server(
        tmp_path_factory.mktemp("docs"), {"pieces": PIECES}
    ) as running_server:
        yield running_server


async def open_docs(console: ConsolePage, link: str = "") -> None:
    """Open the page and wait for its operations; `link` is a deep link to one."""
    await console.page.goto(f"{console.url}/docs{link}")
    await console.page.locator(".opblock").first.wait_for()


def operation(console: ConsolePage, tag: str, name: str) -> Locator:
    return console.page.locator(f"#operations-{tag}-{name}")


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
    async with open_console(server, browser, color_scheme=scheme) as console:
        await open_docs(console)
        block = operation(console, "Jobs", "postRunsync")
        await block.locator(".opblock-summary-control").click()
        assert console.page.url.endswith("#/Jobs/postRunsync")
        answer = await execute(block)
        await expect(answer.locator(".response-col_status")).to_contain_text("200")
        await expect(answer).to_contain_text('"status": "COMPLETED"')
        is_dark = "document.documentElement.classList.contains('dark-mode')"
        assert await console.page.evaluate(is_dark) is (scheme == "dark")
        # A violation of the policy is an error on the browser's console.
        console.check()


async def test_policy_blocks_what_is_not_of_the_server(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console:
        await open_docs(console)
        await console.page.evaluate("fetch('http://127.0.0.2:9/').catch(() => null)")
        assert "Content Security Policy" in str(console.browser_errors)


@pytest.mark.parametrize("link", ["OpenAI/postV1ChatCompletions", "Aliases/postV3Completions"])
async def test_deep_link_opens_its_operation(
    browser: Browser, server: EmulatorProcess, link: str
) -> None:
    async with open_console(server, browser) as console:
        await open_docs(console, f"#/{link}")
        block = operation(console, *link.split("/"))
        await expect(block.get_by_role("button", name="Execute")).to_be_visible()
        console.check()


async def test_rarely_used_tags_start_closed(browser: Browser, server: EmulatorProcess) -> None:
    async with open_console(server, browser) as console:
        await open_docs(console)
        await expect(operation(console, "OpenAI", "postV1Completions")).to_be_visible()
        await expect(console.page.locator("#operations-tag-Workers")).to_be_visible()
        assert await console.page.locator("[id^=operations-Workers-]").count() == 0


async def test_streamed_example_shows_its_events(browser: Browser, server: EmulatorProcess) -> None:
    async with open_console(server, browser) as console:
        await open_docs(console, "#/OpenAI/postV1ChatCompletions")
        block = operation(console, "OpenAI", "postV1ChatCompletions")
        await block.locator(".examples-select select").select_option("streamed")
        answer = await execute(block)
        await expect(answer).to_contain_text("data: [DONE]")
        text = await answer.locator(".highlight-code").first.inner_text()
        lines = [line.removeprefix("data: ") for line in text.splitlines() if '"choices"' in line]
        deltas = [json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines]
        assert "".join(deltas) == "".join(PIECES)
        console.check()


async def test_key_authorizes_what_is_executed(browser: Browser, tmp_path: Path) -> None:
    async with (
        run_scripted_server(tmp_path, {"pieces": PIECES}, environment={"API_KEYS": KEY}) as server,
        open_console(server, browser) as console,
    ):
        await open_docs(console, "#/OpenAI/postV1Completions")
        block = operation(console, "OpenAI", "postV1Completions")
        answer = await execute(block)
        await expect(answer.locator(".response-col_status")).to_contain_text("401")
        await console.page.get_by_role("button", name="Authorize", exact=True).click()
        dialog = console.page.locator(".modal-ux")
        # The key can be given in two ways; this is `Authorization: Bearer`.
        await dialog.locator("#auth-bearer-value").fill(KEY)
        await dialog.get_by_role("button", name="Apply credentials").first.click()
        await dialog.locator(".close-modal").click()
        await block.get_by_role("button", name="Execute").click()
        await expect(answer.locator(".response-col_status")).to_contain_text("200")
        await expect(answer).to_contain_text("It is Paris.")
        # The browser logs each 401 itself.
        assert all("401" in each for each in console.browser_errors)
        assert console.external_urls == []


async def test_key_entered_in_the_console_is_used(browser: Browser, tmp_path: Path) -> None:
    async with (
        run_scripted_server(tmp_path, {"pieces": PIECES}, environment={"API_KEYS": KEY}) as server,
        open_console(server, browser) as console,
    ):
        await console.page.goto(f"{console.url}/")
        await console.page.get_by_label("Key", exact=True).fill(KEY)
        await console.page.keyboard.press("Enter")
        await console.page.get_by_label("temperature", exact=True).wait_for()
        await console.page.get_by_role("link", name="API", exact=True).click()
        await console.page.locator(".opblock").first.wait_for()
        block = operation(console, "Jobs", "postRunsync")
        await block.locator(".opblock-summary-control").click()
        answer = await execute(block)
        await expect(answer.locator(".response-col_status")).to_contain_text("200")
        assert console.external_urls == []


async def test_console_links_to_the_docs_and_back(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        await console.page.get_by_role("link", name="API", exact=True).click()
        await console.page.locator(".opblock").first.wait_for()
        pages = console.page.get_by_role("navigation", name="Pages")
        await pages.get_by_role("link", name="Console", exact=True).click()
        await console.page.get_by_label("temperature", exact=True).wait_for()
        console.check()
