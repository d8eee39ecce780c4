"""What a user's handler returns, streams and reports, as the playground and job pages show it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.long.console.browser import DESK, PHONE, ConsolePage, open_console
from tests.long.console.test_accessibility import examine
from tests.long.console.test_hostile import MARKS, MARKUP, check_harmless

pytestmark = pytest.mark.asyncio(loop_scope="module")

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
HANDLER = """\
import time
from pathlib import Path

import runpod

def handler(job):
    task = job["input"]
    if "raise" in task:
        raise ValueError(task["raise"])
    for progress in task.get("progress", []):
        runpod.serverless.progress_update(job, progress)
        while not Path(task["until"]).exists():
            time.sleep(0.05)
    return task["output"]

runpod.serverless.start({"handler": handler})
"""
STREAMER = """\
import runpod

def handler(job):
    yield from job["input"]["chunks"]

runpod.serverless.start({"handler": handler})
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    home = tmp_path_factory.mktemp("handlers")
    options = []
    for name, code in (("handler", HANDLER), ("streamer", STREAMER)):
        (home / name).mkdir()
        (home / name / "handler.py").write_text(code)
        options += ["--handler", str(home / name)]
    settings = {"HOME": str(home), "DRAIN_S": "0"}
    async with run_emulator(settings, *options, "--port", "0") as server:
        await server.wait_until_listening()
        yield server


async def run(console: ConsolePage, job_input: Any, endpoint: str = "handler") -> None:
    """Send a job of a handler from the playground."""
    page = console.page
    await page.goto(f"{console.url}/#/playground")
    select = page.get_by_label("Endpoint", exact=True)
    await expect(select.locator("option")).to_have_count(2)
    if await select.input_value() != endpoint:
        async with page.expect_response("**/console/description?endpoint=*"):
            await select.select_option(endpoint)
        await expect(page.get_by_label("Input as JSON", exact=True)).to_have_value("{}")
    await page.get_by_label("Input as JSON", exact=True).fill(json.dumps(job_input))
    await page.locator(".button.primary", has_text="Run").click()


async def test_output_of_any_kind_is_shown_in_the_first_tab_of_both_pages(
    browser: Browser, server: EmulatorProcess
) -> None:
    outputs: list[tuple[Any, str]] = [
        ("line one\nline two", "line one\nline two"),
        (42, "42"),
        (True, "true"),
        (None, "null"),
        ({"greeting": "Hello", "scores": [1, 2.5]}, '"scores": [1, 2.5]'),
    ]
    async with open_console(server, browser) as console:
        page = console.page
        for output, text in outputs:
            await run(console, {"output": output})
            await expect(page.locator(".output:visible")).to_contain_text(text)
        for is_job_page in (False, True):
            if is_job_page:
                await page.get_by_role("link", name="View job").click()
                await expect(page.locator(".detail .output")).to_contain_text(text)
            for word in ("Verdict", "Changes", "Tokens", "First token", "Boundaries", "Engine"):
                found = page.get_by_text(word, exact=True).locator("visible=true")
                await expect(found).to_have_count(0)
        console.check()


async def test_pictures_and_files_are_shown_and_downloaded_and_nothing_foreign_is_loaded(
    browser: Browser, server: EmulatorProcess
) -> None:
    output = {
        "image_base64": PNG,
        "images": [f"data:image/png;base64,{PNG}"],
        "report": "data:application/pdf;base64,JVBERg==",
        "url": "https://example.invalid/a.png",
    }
    async with open_console(server, browser) as console:
        page = console.page
        await run(console, {"output": output})
        await console.wait_for_end()
        pictures = page.locator(".output img")
        await expect(pictures).to_have_count(2)
        await expect(page.get_by_text("image/png, 70 B, 1 × 1")).to_have_count(2)
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Download report").click()
        assert (await (await download.value).path()).read_bytes() == b"%PDF"
        assert (await download.value).suggested_filename == "output.pdf"
        link = page.locator(".output").get_by_role("link", name="https://example.invalid/a.png")
        await expect(link).to_have_attribute("rel", "noopener noreferrer")
        await examine(console, "pictures")
        console.check()


async def test_large_output_is_shown_in_part_and_in_whole_on_request(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console:
        page = console.page
        await run(console, {"output": "x" * 30_000})
        await console.wait_for_end()
        await expect(page.get_by_text("10,000 more characters are not shown")).to_be_visible()
        await page.get_by_role("button", name="Show more").locator("visible=true").click()
        await expect(page.locator(".value-text:visible")).to_have_text("x" * 30_000)
        await run(console, {"output": [{"n": n} for n in range(5_000)]})
        await expect(page.get_by_text("201 of 10,001 values are shown")).to_be_visible()
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Download").locator("visible=true").click()
        assert len(json.loads((await (await download.value).path()).read_text())) == 5_000
        console.check()


@pytest.mark.parametrize(
    ("progress", "text", "value"),
    [("step 3: 75% done", "step 3: 75% done", 0.75), ({"step": 3}, '"step": 3', None)],
)
async def test_progress_is_a_bar_or_a_text_until_the_job_ends(
    browser: Browser,
    server: EmulatorProcess,
    tmp_path: Path,
    progress: Any,
    text: str,
    value: float | None,
) -> None:
    async with open_console(server, browser) as console:
        page, until = console.page, tmp_path / "until"
        await run(console, {"progress": [progress], "until": str(until), "output": "finished"})
        for is_job_page in (False, True):
            if is_job_page:
                await page.get_by_role("link", name="View job").click()
            await expect(page.locator(".output:visible")).to_contain_text(text)
            bar = page.locator("progress:visible")
            await expect(bar).to_have_count(0 if value is None else 1)
            if value is not None:
                assert await bar.evaluate("(bar) => bar.value") == value
        await examine(console, "progress")
        until.touch()
        await expect(page.locator(".value-text:visible")).to_have_text("finished")
        await expect(bar).to_have_count(0)
        console.check()


async def test_chunks_are_a_list_whose_texts_can_be_joined(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console:
        page = console.page
        await run(console, {"chunks": [{"step": 1}, "text"]}, "streamer")
        await console.wait_for_end()
        chunks = page.locator(".chunk:visible")
        await expect(chunks).to_have_text(['1{"step": 1}', "2text"])
        await expect(page.get_by_text("Join the texts").locator("visible=true")).to_have_count(0)
        await run(console, {"chunks": ["one ", "two "] * 75}, "streamer")
        await expect(
            page.get_by_text("150 chunks, of which the first 50 are not shown")
        ).to_be_visible()
        await expect(chunks).to_have_count(100)
        await page.get_by_role("button", name="Show more").locator("visible=true").click()
        await expect(chunks).to_have_count(150)
        await page.get_by_role("switch", name="Join the texts").click()
        await expect(page.locator(".value-text:visible")).to_have_text("one two " * 75)
        await examine(console, "joined chunks")
        console.check()


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_exception_has_a_headline_and_a_traceback(
    browser: Browser, server: EmulatorProcess, size: dict[str, int]
) -> None:
    async with open_console(server, browser, viewport=size) as console:
        page = console.page
        await run(console, {"raise": f"too many {MARKUP}"})
        await console.wait_for_end("Failed")
        for is_job_page in (False, True):
            if is_job_page:
                await page.get_by_role("link", name="View job").click()
            headline = page.locator(".form-error:visible")
            await expect(headline).to_have_text(f"ValueError: too many {MARKUP}")
            own = page.locator(".traceback:visible .own")
            await expect(own.last).to_contain_text('raise ValueError(task["raise"])')
            await expect(
                page.get_by_text("worker_id launched-").locator("visible=true")
            ).to_have_count(1)
            await examine(console, "a failed job")
        await run(console, {"output": {"error": "no GPU is free"}})
        await expect(headline).to_have_text("no GPU is free")
        await expect(page.locator(".traceback:visible")).to_have_count(0)
        await check_harmless(console)


async def test_hostile_output_is_text_and_stays_in_its_place(
    browser: Browser, server: EmulatorProcess
) -> None:
    values = [MARKUP, MARKS, f"data:image/png;base64,{MARKUP}", f"data:{MARKUP},x"]
    outputs = [MARKUP + MARKS, {MARKUP: values, "long": "a" * 100_000}, "a" * 1_000_000]
    async with open_console(server, browser, viewport=PHONE) as console:
        for output in outputs:
            await run(console, {"output": output, "progress": []})
            await console.wait_for_end()
            await expect(console.page.locator(".output:visible")).to_contain_text(
                "<script>" if MARKUP in str(output) else "aaa"
            )
            await check_harmless(console)
            width = await console.page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE["width"]
        await run(console, {"chunks": values}, "streamer")
        await expect(console.page.locator(".chunk")).to_have_count(4)
        await check_harmless(console)
