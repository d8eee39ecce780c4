"""The screens for jobs, batches, the engine and keys, used as a person would use them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.conftest import ScriptFactory
from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.long.console.browser import open_console, run_scripted_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "the-right-key"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with run_scripted_server(
        tmp_path_factory.mktemp("screens"),
        {"when": "for ever", "pieces": [{"text": "on ", "delay_ms": 10}], "repeat": -1},
        {"when": "broken", "pieces": ["half", {"error": "the runtime said no"}]},
        {"pieces": ["yes", " it", " is"]},
    ) as running_server:
        yield running_server


async def test_running_job_is_inspected_and_cancelled(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console, server.client() as client:
        sampling = {"max_tokens": 100_000}
        request = {"input": {"prompt": "for ever and ever", "sampling_params": sampling}}
        await client.post("/run", json=request)
        await console.go("jobs")
        row = console.page.locator("tbody tr", has_text="for ever and ever").first
        await expect(row.locator(".badge")).to_have_text("Running")
        await row.get_by_role("link").click()
        await expect(console.text).to_contain_text("on on on")
        for moment in ("Queued", "Started", "First token"):
            moment_line = console.page.locator(".moment", has_text=moment)
            await expect(moment_line.locator(".when")).to_contain_text(":")
        await console.page.get_by_role("button", name="Cancel", exact=True).click()
        await expect(row.locator(".badge")).to_have_text("Cancelled")
        await expect(console.page.locator(".moment", has_text="Cancelled")).to_be_visible()
        panel = await console.tab("Input")
        await expect(panel).to_contain_text('"prompt": "for ever and ever"')
        console.check()


async def test_failed_job_has_its_error_and_can_be_retried(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console, server.client() as client:
        job = (await client.post("/runsync", json={"input": {"prompt": "x"}})).json()
        assert job["status"] == "COMPLETED"
        job_id = (await client.post("/run", json={"input": {"prompt": "broken"}})).json()["id"]
        await console.go(f"jobs/{job_id}")
        failure = console.page.locator(".detail .form-error")
        await expect(failure).to_contain_text("the runtime said no")
        await console.page.get_by_role("button", name="Retry").click()
        await expect(console.page.locator(".detail")).to_contain_text("retried 1×")
        await expect(failure).to_contain_text("the runtime said no")
        console.check()


async def test_finished_job_is_inspected_and_opened_in_the_playground(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console, server.client() as client:
        turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it?"}]
        job_input = {"messages": turns, "sampling_params": {"temperature": 0.5, "stop": ["zz"]}}
        job_id = (await client.post("/run", json={"input": job_input})).json()["id"]
        await client.get(f"/status-sync/{job_id}")
        await console.go(f"jobs/{job_id}")
        await expect(console.text).to_have_text("yes it is")
        panel = await console.tab("JSON")
        await expect(panel).to_contain_text('"finish_reason": "stop"')
        panel = await console.tab("Verdict")
        await expect(panel).to_contain_text("Intent")
        await console.page.get_by_role("link", name="Open in the playground").click()
        contents = console.page.get_by_label("Content", exact=True)
        await expect(contents).to_have_count(2)
        assert [await each.input_value() for each in await contents.all()] == [
            "Be brief.",
            "Is it?",
        ]
        await expect(console.page.get_by_label("temperature", exact=True)).to_have_value("0.5")
        assert await console.page.locator(".chip code").all_inner_texts() == ["zz"]
        console.check()


async def test_batch_is_uploaded_and_downloaded(
    browser: Browser, server: EmulatorProcess, tmp_path: Path
) -> None:
    path = tmp_path / "two.jsonl"
    path.write_text(f"{line('good')}\n{line('bad', temperature=9)}\n")
    async with open_console(server, browser) as console:
        await console.go("batches")
        await console.page.locator("input[type=file]").set_input_files(path)
        batch = console.page.locator(".batch").first
        await expect(batch.locator(".badge")).to_have_text("completed")
        await expect(batch).to_contain_text("2 of 2 lines, 1 failed")
        row = batch.locator("tbody tr")
        await expect(row.locator("th")).to_have_text("bad")
        await expect(row.locator("td")).to_contain_text("temperature must be a number from 0 to 2")
        async with console.page.expect_download() as download:
            await batch.get_by_role("button", name="Answers").click()
        answers = (await (await download.value).path()).read_text().splitlines()
        assert [json.loads(each)["custom_id"] for each in answers] == ["good"]
        console.check()


def line(name: str, route: str = "completions", **body: Any) -> str:
    request = {"custom_id": name, "method": "POST", "url": f"/v1/{route}"}
    return json.dumps({**request, "body": {"prompt": "x", **body}})


async def test_invalid_batch_file_has_errors_by_line(
    browser: Browser, server: EmulatorProcess, tmp_path: Path
) -> None:
    broken, mixed = tmp_path / "broken.jsonl", tmp_path / "mixed.jsonl"
    without_requests = tmp_path / "nothing.jsonl"
    broken.write_text(f"{line('a')}\nno JSON\n{line('a')}\n")
    mixed.write_text(f"{line('a')}\n{line('b', 'embeddings')}\n")
    without_requests.write_text("no request at all\n")
    async with open_console(server, browser) as console, server.client() as client:
        await console.go("batches")
        file_input = console.page.locator("input[type=file]")
        errors = console.page.locator("[aria-label=Upload] .form-error")
        await file_input.set_input_files(broken)
        await expect(errors.locator("li")).to_contain_text(["line 2: ", "line 3: "])
        await file_input.set_input_files(without_requests)
        await expect(errors).to_contain_text("nothing.jsonl")
        await file_input.set_input_files(mixed)
        await expect(errors).to_contain_text("line 2: the line is for /v1/embeddings")
        console.browser_errors = [each for each in console.browser_errors if "400" not in each]
        # A valid file, with a batch for another route.
        files = {"file": f"{line('a')}\n{line('b')}\n".encode()}
        stored = await client.post("/v1/files", data={"purpose": "batch"}, files=files)
        await client.post(
            "/v1/batches",
            json={
                "input_file_id": stored.json()["id"],
                "endpoint": "/v1/embeddings",
                "completion_window": "24h",
            },
        )
        batch = console.page.locator(".batch").first
        await expect(batch.locator(".badge")).to_have_text("failed")
        assert await batch.locator("tbody th").all_inner_texts() == ["1", "2"]
        console.check()


async def test_engine_screen_has_the_states_of_several_models(
    browser: Browser, script: ScriptFactory
) -> None:
    broken = script(load_error="no such chip")
    models = [
        {"path": str(script()), "name": "first", "memory_mb": 9},
        {"path": str(script()), "name": "second", "memory_mb": 9},
        {"path": str(broken), "name": "third", "memory_mb": 1},
    ]
    settings = {"MODELS": json.dumps(models), "MODEL_MEMORY_MB": "10"}
    async with run_emulator(settings, "--port", "0") as running:
        await running.wait_until_listening()
        async with open_console(running, browser) as console:
            await console.go("engine")
            card = console.page.get_by_label("Models", exact=True)
            await expect(card.locator("dd")).to_have_text(
                ["loaded", "loaded when it is requested", "not available"]
            )
            await expect(card.locator("dd").last).to_have_attribute(
                "title", "the model third cannot be loaded: no such chip"
            )


async def test_engine_screen_has_capabilities_slots_and_charts(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console:
        await console.go("engine")
        facts = console.page.get_by_label("Model", exact=True).locator(".plain-facts")
        await expect(facts).to_contain_text("100,000 tokens")
        await expect(console.page.get_by_label("Models", exact=True)).to_be_hidden()
        await expect(console.page.locator(".slots span")).to_have_count(4)
        await expect(console.page.locator(".able .no")).to_contain_text(["logit_bias"])
        await expect(console.page.locator(".issue").first).to_contain_text("logit_bias")
        await expect(console.page.locator(".spark-now").first).not_to_have_text("–")
        line_chart = console.page.locator(".spark-line").first
        # Two points make a line.
        await expect(line_chart).to_have_attribute("points", re.compile(r"\S+ \S+"))
        console.check()


async def test_wrong_key_is_refused_and_the_right_one_stays_in_its_tab(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        run_scripted_server(tmp_path, {"pieces": ["in"]}, environment={"API_KEYS": KEY}) as server,
        open_console(server, browser) as console,
    ):
        page = console.page
        await page.goto(f"{console.url}/")
        dialog = page.get_by_role("dialog", name="API key")
        await expect(dialog).to_be_visible()
        await page.get_by_label("Key", exact=True).fill("a-wrong-key")
        await page.keyboard.press("Enter")
        await expect(dialog).to_contain_text("The server refused this key")
        await page.get_by_label("Key", exact=True).fill(KEY)
        await page.keyboard.press("Enter")
        await expect(dialog).to_be_hidden()
        await page.get_by_label("temperature", exact=True).wait_for()
        await console.ask("may I?")
        await console.wait_for_end()
        await expect(console.text).to_have_text("in")
        read_storage = "({tab: Object.values(sessionStorage), all: Object.values(localStorage)})"
        assert await page.evaluate(read_storage) == {"tab": [KEY], "all": []}
        assert await page.evaluate("document.cookie") == ""
        assert KEY not in page.url
        # The browser logs each 401; there is no other error.
        assert all("401" in each for each in console.browser_errors)
        assert console.external_urls == []
        other = await page.context.new_page()
        await other.goto(f"{console.url}/")
        await expect(other.get_by_role("dialog", name="API key")).to_be_visible()
