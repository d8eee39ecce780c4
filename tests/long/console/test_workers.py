"""The workers of a handler's server in the console: their list, their logs, the handler's state."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.long.console.browser import DESK, PHONE, open_console
from tests.long.console.test_accessibility import examine

pytestmark = pytest.mark.asyncio(loop_scope="module")

HANDLER = """\
import os
import time
import runpod

def handler(job):
    if job["input"].get("crashes"):
        os._exit(3)
    time.sleep(job["input"].get("sleep_s", 0))
    for number in range(job["input"].get("lines", 0)):
        print("line", number)
    print("<b onclick='x'>\\x1b[31mbold\\x1b[0m</b>", flush=True)
    return "printed"

runpod.serverless.start({"handler": handler})
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "my-worker"
    project.mkdir()
    (project / "handler.py").write_text(HANDLER)
    return project


@pytest_asyncio.fixture(loop_scope="module")
async def server(project: Path) -> AsyncIterator[EmulatorProcess]:
    home = project.parent / "home"
    home.mkdir()
    settings = {"HOME": str(home), "DRAIN_S": "0", "MAX_LOSSES": "1"}
    async with run_emulator(settings, "--handler", str(project), "--port", "0") as server:
        await server.wait_until_listening()
        yield server


async def test_log_is_followed_as_text_to_the_end_of_the_worker(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console, server.client() as client:
        page = console.page
        await console.go("workers")
        row = page.locator("tbody tr").first
        await expect(row.locator(".badge")).to_have_text("Idle")
        await expect(row.locator(".number")).to_have_text(re.compile(r"^\d+ s$"))
        await row.get_by_role("link").click()
        log = page.get_by_role("region", name="Worker log")
        await expect(log).to_contain_text("asked for its first job")
        await client.post("/runsync", json={"input": {"lines": 3}})
        await expect(log).to_contain_text("line 2")
        await expect(log).to_contain_text("<b onclick='x'>bold</b>")
        assert await log.locator("b").count() == 0
        await client.post("/runsync", json={"input": {"lines": 5000}})
        await expect(log).to_contain_text("earlier lines are not shown")
        assert await log.locator(".log-line").count() <= 2000
        await client.post("/run", json={"input": {"crashes": True}})
        await expect(page.get_by_text("The worker has ended.", exact=True).first).to_be_visible()
        await expect(page.locator(".detail .form-error")).to_contain_text("code 3")
        # The worker that replaces it is listed first.
        await expect(page.locator("tbody tr.chosen .badge")).to_have_text(
            re.compile("Ended|Unhealthy")
        )
        console.check()


async def test_log_resumes_after_a_break_without_gap_or_repetition(
    browser: Browser, server: EmulatorProcess
) -> None:
    # The first response breaks off after its first event, as when a proxy restarts.
    breaks = """
    const { fetch } = window;
    window.lastEventIds = [];
    window.fetch = async (path, options) => {
      const response = await fetch(path, options);
      if (!path.includes("/logs")) return response;
      window.lastEventIds.push(options.headers["last-event-id"] ?? null);
      if (window.lastEventIds.length > 1) return response;
      const reader = response.body.getReader();
      let isBroken = false;
      const body = new ReadableStream({
        async pull(controller) {
          if (isBroken) return controller.error(new TypeError("network error"));
          isBroken = true;
          controller.enqueue((await reader.read()).value);
        },
        cancel: () => reader.cancel(),
      });
      return new Response(body, response);
    };
    """
    async with open_console(server, browser, init=breaks) as console, server.client() as client:
        page = console.page
        await console.go("workers")
        await expect(page.locator("tbody tr .badge").first).to_have_text("Idle")
        await page.locator("tbody tr").first.get_by_role("link").click()
        await expect(page.locator(".detail")).to_contain_text("Following the log.")
        await client.post("/runsync", json={"input": {"lines": 2}})
        lines = page.locator(".log-line")
        await expect(lines.filter(has_text="line 1")).to_have_count(1)
        await expect(lines.filter(has_text="asked for its first job")).to_have_count(1)
        first, second = await page.evaluate("window.lastEventIds")
        assert first is None
        assert re.fullmatch(r"\S+/\d{12}", second)
        console.check()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_failed_handler_is_shown_with_its_reason_and_output(
    browser: Browser, server: EmulatorProcess, project: Path, theme: str
) -> None:
    async with open_console(server, browser, color_scheme=theme) as console:
        page = console.page
        await console.go("workers")
        card = page.get_by_role("region", name="Handler", exact=True)
        await expect(card.locator(".badge")).to_have_text("Ready")
        await expect(card).to_contain_text(str(project / "handler.py"))
        (project / "handler.py").write_text("import a_missing_package\n")
        await expect(card.locator(".badge")).to_have_text("Outdated")
        await expect(card.get_by_role("alert")).to_contain_text("ModuleNotFoundError")
        output = card.get_by_role("region", name="Output of the handler")
        await expect(output).to_contain_text("a_missing_package")
        await expect(page.locator("#status-text")).to_have_text("Older code runs")
        await examine(console, "workers, the handler is outdated")
        await page.locator("tbody tr a").first.click()
        await expect(page.locator(".log-line").first).to_be_visible()
        await examine(console, "worker log")
        await page.get_by_role("link", name="Playground", exact=True).click()
        await expect(page.get_by_text("Write the input of a job as JSON")).to_be_visible()
        await page.locator("#status").click()
        await expect(page).to_have_title("Workers · worker-rkllm")
        (project / "handler.py").write_text(HANDLER)
        await expect(card.locator(".badge")).to_have_text("Ready")
        await expect(output).to_be_hidden()
        console.check()


async def test_worker_without_a_log_is_explained(browser: Browser, server: EmulatorProcess) -> None:
    async with open_console(server, browser) as console:
        await console.go("workers/my-worker/nobody")
        failure = console.page.locator(".detail .form-error")
        await expect(failure).to_contain_text("endpoint my-worker has no worker nobody")
        console.browser_errors = [each for each in console.browser_errors if "404" not in each]
        console.check()


@pytest.mark.parametrize("size", [DESK, PHONE, {"width": 900, "height": 700}])
async def test_workers_screen_fits_the_window_and_is_reached_by_keys(
    browser: Browser, server: EmulatorProcess, size: dict[str, int]
) -> None:
    async with open_console(server, browser, viewport=size) as console:
        page = console.page
        await console.go("engine")
        await page.get_by_role("link", name="Workers", exact=True).focus()
        await page.keyboard.press("Enter")
        await expect(page).to_have_title("Workers · worker-rkllm")
        await expect(page.locator("tbody tr .badge").first).to_have_text("Idle")
        link = page.locator("tbody tr a").first
        await link.focus()
        await page.keyboard.press("Enter")
        log = page.get_by_role("region", name="Worker log")
        await expect(log).to_contain_text("asked for its first job")
        await log.focus()
        await expect(log).to_be_focused()
        overflow = "document.documentElement.scrollWidth - innerWidth"
        assert await page.evaluate(overflow) <= 0
        console.check()


async def test_handler_that_never_started_is_shown_as_failed(
    browser: Browser, project: Path
) -> None:
    (project / "handler.py").write_text("print('before')\nimport a_missing_package\n")
    home = project.parent / "home"
    home.mkdir()
    settings = {"HOME": str(home), "DRAIN_S": "0"}
    async with run_emulator(settings, "--handler", str(project), "--port", "0") as server:
        await server.wait_until_listening()
        async with open_console(server, browser) as console:
            page = console.page
            await console.go("workers")
            card = page.get_by_role("region", name="Handler", exact=True)
            await expect(card.locator(".badge")).to_have_text("Failed")
            await expect(card.get_by_role("alert")).to_contain_text("ModuleNotFoundError")
            output = card.get_by_role("region", name="Output of the handler")
            await expect(output).to_contain_text("before")
            await expect(page.locator("#status-text")).to_have_text("Handler failed")
            row = page.locator("tbody tr", has_text="Unhealthy").first
            await row.get_by_role("link").click()
            await expect(page.locator(".detail .form-error")).to_contain_text("code 1")
            await expect(page.locator(".log-line", has_text="before")).to_have_count(1)
            console.check()


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_job_links_to_its_lines_in_the_log_of_its_worker(
    browser: Browser, server: EmulatorProcess, size: dict[str, int]
) -> None:
    async with open_console(server, browser, viewport=size) as console, server.client() as client:
        page = console.page
        ids = []
        for lines in (2, 3):
            job = await client.post("/run", json={"input": {"lines": lines}})
            ids.append(job.json()["id"])
            await client.get(f"/status-sync/{ids[-1]}")
        await console.go(f"jobs/{ids[1]}")
        await page.get_by_role("link", name="Log of worker").click()
        log = page.get_by_role("region", name="Worker log")
        await expect(log).to_contain_text(f"INFO   | {ids[1]} | Started.")
        await expect(log).to_contain_text("line 2")
        await expect(log).not_to_contain_text(ids[0])
        await examine(console, "the lines of a job")
        await page.get_by_role("switch", name="Only this job").click()
        await expect(log).to_contain_text(ids[0])
        await page.get_by_role("switch", name="Only this job").click()
        await expect(log).not_to_contain_text(ids[0])
        await page.get_by_role("link", name="View job").locator("visible=true").click()
        await expect(page.locator(".detail .badge").first).to_have_text("Done")
        console.check()


async def test_waiting_job_says_what_it_waits_for(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console, server.client() as client:
        page = console.page
        await client.post("/run", json={"input": {"sleep_s": 60}})
        job = await client.post("/run", json={"input": {}})
        await console.go(f"jobs/{job.json()['id']}")
        reason = "The job waits for a worker that runs other jobs."
        await expect(page.locator(".detail").get_by_text(reason)).to_be_visible()
        await page.get_by_role("button", name="Cancel", exact=True).click()
        await expect(page.locator(".detail").get_by_text(reason)).to_be_hidden()
        console.check()
