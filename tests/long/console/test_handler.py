"""The console of a server with a user's handler: send any JSON, repeat a job, save a test."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Dialog, expect

from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.long.console.browser import PHONE, open_console
from tests.long.console.test_accessibility import examine

pytestmark = pytest.mark.asyncio(loop_scope="module")

HANDLER = """\
import runpod

def handler(job):
    return {"greeting": f"Hello, {job['input']['name']}!"}

runpod.serverless.start({"handler": handler})
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("handler") / "my-worker"
    project.mkdir()
    (project / "handler.py").write_text(HANDLER)
    (project / "test_input.json").write_text('{"id": "local", "input": {"name": "Example"}}')
    return project


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(project: Path) -> AsyncIterator[EmulatorProcess]:
    home = project.parent / "home"
    home.mkdir()
    settings = {"HOME": str(home), "DRAIN_S": "0"}
    async with run_emulator(settings, "--handler", str(project), "--port", "0") as server:
        await server.wait_until_listening()
        yield server


async def test_job_with_any_json_is_sent_repeated_and_saved_as_a_test(
    browser: Browser, server: EmulatorProcess, project: Path
) -> None:
    async with open_console(server, browser) as console:
        page = console.page
        await page.goto(f"{console.url}/#/playground")
        box = page.get_by_label("Input as JSON", exact=True)
        await expect(box).to_have_value('{\n  "name": "Example"\n}')
        await box.fill('{"name": ')
        run = page.locator(".button.primary", has_text="Run")
        await run.click()
        await expect(page.locator(".form-error:visible")).to_contain_text("The input is not JSON")
        await expect(box).to_have_attribute("aria-invalid", "true")
        await box.fill('{"name": "Ada"}')
        await run.click()
        await console.wait_for_end()
        await page.reload()
        await expect(box).to_have_value('{"name": "Ada"}')

        await page.goto(f"{console.url}/#/jobs")
        rows = page.locator("tbody tr")
        await rows.first.get_by_role("link").click()
        first = page.url
        await page.get_by_role("button", name="Send again", exact=True).click()
        await expect(rows).to_have_count(2)
        await expect(page.locator(".detail .badge").first).to_have_text("Done")
        assert page.url != first
        await expect(await console.tab("Output")).to_contain_text("Hello, Ada!")

        async def name_it(dialog: Dialog) -> None:
            await dialog.accept("greets")

        page.once("dialog", name_it)
        await page.get_by_role("button", name="Save as test", exact=True).click()
        await expect(page.get_by_text(f"Saved in {project / 'tests.json'}.").first).to_be_visible()
        (test,) = json.loads((project / "tests.json").read_text())["tests"]
        assert (test["name"], test["input"]) == ("greets", {"name": "Ada"})

        async def agree(dialog: Dialog) -> None:
            assert "Cancel all jobs of the endpoint my-worker" in dialog.message
            await dialog.accept()

        page.once("dialog", agree)
        await page.goto(f"{console.url}/#/jobs")
        await page.get_by_role("button", name="Empty", exact=True).click()
        await expect(page.get_by_text("No jobs here")).to_be_visible()
        console.check()


async def test_form_sends_to_the_selected_one_of_several_handlers(
    browser: Browser, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "handler.py").write_text(HANDLER.replace("Hello", f"The {name}: hello"))
        text = json.dumps({"input": {"name": f"one of the {name}"}})
        (tmp_path / name / "test_input.json").write_text(text)
    settings = {"HOME": str(tmp_path), "DRAIN_S": "0"}
    options = [part for name in ("first", "second") for part in ("--handler", str(tmp_path / name))]
    async with run_emulator(settings, *options, "--port", "0") as server:
        await server.wait_until_listening()
        async with open_console(server, browser) as console:
            page = console.page
            await page.goto(f"{console.url}/#/playground")
            box = page.get_by_label("Input as JSON", exact=True)
            await expect(box).to_have_value('{\n  "name": "one of the first"\n}')
            await page.get_by_label("Endpoint", exact=True).select_option("second")
            await expect(box).to_have_value('{\n  "name": "one of the second"\n}')
            await page.locator(".button.primary", has_text="Run").click()
            await console.wait_for_end()
            await page.goto(f"{console.url}/#/workers")
            handler = page.get_by_role("region", name="Handler", exact=True)
            await expect(handler).to_contain_text(str(tmp_path / "first"))
            await page.get_by_label("Endpoint", exact=True).select_option("second")
            await expect(handler).to_contain_text(str(tmp_path / "second"))
            await page.goto(f"{console.url}/#/jobs")
            await page.get_by_label("Endpoint", exact=True).select_option("second")
            await page.locator("tbody tr").first.get_by_role("link").click()
            await expect(await console.tab("Output")).to_contain_text("The second: hello")
            await expect(page.get_by_role("button", name="Save as test")).to_be_visible()
            console.check()


async def test_form_offers_each_test_and_sends_webhook_policy_and_bucket(
    browser: Browser, tmp_path: Path
) -> None:
    project = tmp_path / "tested"
    project.mkdir()
    (project / "handler.py").write_text(HANDLER)
    (project / "test_input.json").write_text('{"input": {"name": "Example"}}')
    tests = {"tests": [{"name": "<b>greets", "input": {"name": "Grace"}}]}
    (project / "tests.json").write_text(json.dumps(tests))
    settings = {"HOME": str(tmp_path), "DRAIN_S": "0"}
    async with run_emulator(settings, "--handler", str(project), "--port", "0") as server:
        await server.wait_until_listening()
        async with open_console(server, browser, viewport=PHONE) as console:
            page = console.page
            await page.goto(f"{console.url}/#/playground")
            examples = page.get_by_label("Start with", exact=True)
            box = page.get_by_label("Input as JSON", exact=True)
            await expect(box).to_have_value(re.compile("Example"))
            await examples.select_option("tests.json: <b>greets")
            await expect(box).to_have_value(re.compile("Grace"))
            await page.get_by_text("Webhook, policy and bucket").click()
            await page.get_by_label("webhook", exact=True).fill(f"{console.url}/nowhere")
            await page.get_by_label("executionTimeout", exact=True).fill("60000")
            await page.get_by_label("ttl", exact=True).fill("90000")
            await page.get_by_role("switch", name="lowPriority").check()
            bucket = page.get_by_label("s3Config", exact=True)
            await bucket.fill("{")
            run = page.locator(".button.primary", has_text="Run")
            await run.click()
            error = page.locator(".form-error:visible")
            await expect(error).to_contain_text("s3Config is not JSON")
            await examine(console, "options of a job")
            await bucket.fill('{"bucketName": "b"}')
            async with page.expect_request("**/run") as request:
                await run.click()
            assert json.loads((await request.value).post_data or "") == {
                "input": {"name": "Grace"},
                "webhook": f"{console.url}/nowhere",
                "policy": {"executionTimeout": 60000, "ttl": 90000, "lowPriority": True},
                "s3Config": {"bucketName": "b"},
            }
            await console.wait_for_end()
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE["width"]
            console.check()
