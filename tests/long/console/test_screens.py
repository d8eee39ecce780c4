"""Jobs, batches, the engine, keys: each screen used as somebody would."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import scripted, visit

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "the-right-key"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with scripted(
        tmp_path_factory.mktemp("screens"),
        {"when": "for ever", "pieces": [{"text": "on ", "delay_ms": 10}], "repeat": -1},
        {"when": "broken", "pieces": ["half", {"error": "the runtime said no"}]},
        {"pieces": ["yes", " it", " is"]},
    ) as found:
        yield found


async def test_running_job_is_inspected_and_cancelled(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with visit(server, browser) as here, server.client() as client:
        sampling = {"max_tokens": 100_000}
        given = {"input": {"prompt": "for ever and ever", "sampling_params": sampling}}
        await client.post("/run", json=given)
        await here.go("jobs")
        row = here.page.locator("tbody tr", has_text="for ever and ever").first
        await expect(row.locator(".badge")).to_have_text("Running")
        await row.get_by_role("link").click()
        await expect(here.text).to_contain_text("on on on")
        for moment in ("Queued", "Started", "First token"):
            line = here.page.locator(".moment", has_text=moment)
            await expect(line.locator(".when")).to_contain_text(":")
        await here.page.get_by_role("button", name="Cancel", exact=True).click()
        await expect(row.locator(".badge")).to_have_text("Cancelled")
        await expect(here.page.locator(".moment", has_text="Cancelled")).to_be_visible()
        panel = await here.tab("Input")
        await expect(panel).to_contain_text('"prompt": "for ever and ever"')
        here.check()


async def test_failed_job_says_why_and_is_sent_again(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with visit(server, browser) as here, server.client() as client:
        job = (await client.post("/runsync", json={"input": {"prompt": "x"}})).json()
        assert job["status"] == "COMPLETED"
        sent = (await client.post("/run", json={"input": {"prompt": "broken"}})).json()["id"]
        await here.go(f"jobs/{sent}")
        failure = here.page.locator(".detail .form-error")
        await expect(failure).to_contain_text("the runtime said no")
        await here.page.get_by_role("button", name="Retry").click()
        await expect(here.page.locator(".detail")).to_contain_text("retried 1×")
        await expect(failure).to_contain_text("the runtime said no")
        here.check()


async def test_finished_job_is_looked_at_and_opened_again(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with visit(server, browser) as here, server.client() as client:
        turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it?"}]
        given = {"messages": turns, "sampling_params": {"temperature": 0.5, "stop": ["zz"]}}
        sent = (await client.post("/run", json={"input": given})).json()["id"]
        await client.get(f"/status-sync/{sent}")
        await here.go(f"jobs/{sent}")
        await expect(here.text).to_have_text("yes it is")
        panel = await here.tab("Output")
        await expect(panel).to_contain_text('"finish_reason": "stop"')
        panel = await here.tab("Verdict")
        await expect(panel).to_contain_text("Intent")
        await here.page.get_by_role("link", name="Open in the playground").click()
        contents = here.page.get_by_label("Content", exact=True)
        await expect(contents).to_have_count(2)
        assert [await each.input_value() for each in await contents.all()] == [
            "Be brief.",
            "Is it?",
        ]
        await expect(here.page.get_by_label("temperature", exact=True)).to_have_value("0.5")
        assert await here.page.locator(".chip code").all_inner_texts() == ["zz"]
        here.check()


async def test_batch_is_uploaded_and_downloaded(
    browser: Browser, server: EmulatorProcess, tmp_path: Path
) -> None:
    path = tmp_path / "two.jsonl"
    path.write_text(f"{line('good')}\n{line('bad', temperature=9)}\n")
    async with visit(server, browser) as here:
        await here.go("batches")
        await here.page.locator("input[type=file]").set_input_files(path)
        batch = here.page.locator(".batch").first
        await expect(batch.locator(".badge")).to_have_text("completed")
        await expect(batch).to_contain_text("2 of 2 lines, 1 failed")
        row = batch.locator("tbody tr")
        await expect(row.locator("th")).to_have_text("bad")
        await expect(row.locator("td")).to_contain_text("temperature must be a number from 0 to 2")
        async with here.page.expect_download() as found:
            await batch.get_by_role("button", name="Answers").click()
        answers = (await (await found.value).path()).read_text().splitlines()
        assert [json.loads(each)["custom_id"] for each in answers] == ["good"]
        here.check()


def line(name: str, route: str = "completions", **body: Any) -> str:
    request = {"custom_id": name, "method": "POST", "url": f"/v1/{route}"}
    return json.dumps({**request, "body": {"prompt": "x", **body}})


async def test_file_that_is_no_batch_is_told_by_lines(
    browser: Browser, server: EmulatorProcess, tmp_path: Path
) -> None:
    broken, mixed = tmp_path / "broken.jsonl", tmp_path / "mixed.jsonl"
    nothing = tmp_path / "nothing.jsonl"
    broken.write_text(f"{line('a')}\nno JSON\n{line('a')}\n")
    mixed.write_text(f"{line('a')}\n{line('b', 'embeddings')}\n")
    nothing.write_text("no request at all\n")
    async with visit(server, browser) as here, server.client() as client:
        await here.go("batches")
        chosen = here.page.locator("input[type=file]")
        wrong = here.page.locator("[aria-label=Upload] .form-error")
        await chosen.set_input_files(broken)
        await expect(wrong.locator("li")).to_contain_text(["line 2: ", "line 3: "])
        await chosen.set_input_files(nothing)
        await expect(wrong).to_contain_text("nothing.jsonl")
        await chosen.set_input_files(mixed)
        await expect(wrong).to_contain_text("line 2: the line is for /v1/embeddings")
        here.complaints = [each for each in here.complaints if "400" not in each]
        # A file that is good, of which a batch of another route was asked for.
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
        batch = here.page.locator(".batch").first
        await expect(batch.locator(".badge")).to_have_text("failed")
        assert await batch.locator("tbody th").all_inner_texts() == ["1", "2"]
        here.check()


async def test_engine_tells_of_itself(browser: Browser, server: EmulatorProcess) -> None:
    async with visit(server, browser) as here:
        await here.go("engine")
        await expect(here.page.locator(".plain-facts")).to_contain_text("100,000 tokens")
        await expect(here.page.locator(".slots span")).to_have_count(4)
        await expect(here.page.locator(".able .no")).to_contain_text(["logit_bias"])
        await expect(here.page.locator(".issue").first).to_contain_text("logit_bias")
        await expect(here.page.locator(".spark-now").first).not_to_have_text("–")
        drawn = here.page.locator(".spark-line").first
        # Two points make a line.
        await expect(drawn).to_have_attribute("points", re.compile(r"\S+ \S+"))
        here.check()


async def test_wrong_key_is_refused_and_the_right_one_stays_in_its_tab(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        scripted(tmp_path, {"pieces": ["in"]}, environment={"API_KEYS": KEY}) as server,
        visit(server, browser) as here,
    ):
        page = here.page
        await page.goto(f"{here.url}/")
        dialog = page.get_by_role("dialog", name="API key")
        await expect(dialog).to_be_visible()
        await page.get_by_label("Key", exact=True).fill("a-wrong-key")
        await page.keyboard.press("Enter")
        await expect(dialog).to_contain_text("The server refused this key")
        await page.get_by_label("Key", exact=True).fill(KEY)
        await page.keyboard.press("Enter")
        await expect(dialog).to_be_hidden()
        await page.get_by_label("temperature", exact=True).wait_for()
        await here.ask("may I?")
        await here.ended()
        await expect(here.text).to_have_text("in")
        kept = "({tab: Object.values(sessionStorage), all: Object.values(localStorage)})"
        assert await page.evaluate(kept) == {"tab": [KEY], "all": []}
        assert await page.evaluate("document.cookie") == ""
        assert KEY not in page.url
        # The browser tells of each 401 by itself; nothing else was complained of.
        assert all("401" in each for each in here.complaints)
        assert here.outside == []
        other = await page.context.new_page()
        await other.goto(f"{here.url}/")
        await expect(other.get_by_role("dialog", name="API key")).to_be_visible()
