"""The choice of a model, and what each page says about an engine that does not run."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Browser, expect

from tests.conftest import ScriptFactory
from tests.integration.emulator.processes import run_emulator
from tests.long.console.browser import DESK, PHONE, ConsolePage, open_console
from tests.long.console.test_accessibility import examine

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGES = ("playground", "jobs", "workers", "batches", "engine")
HEALTH = {
    "status": "unavailable",
    "model": "small",
    "jobs": {"database": "ok", "trouble": None},
    "batches": {"set_aside": []},
}
ENGINE = {"slots": 4, "running": 0, "waiting": 2, "restarts": 1, "failure": None, "trouble": None}


async def test_chosen_model_answers_requests_of_every_kind(
    browser: Browser, script: ScriptFactory
) -> None:
    models = [
        {"path": str(script({"pieces": [name]})), "name": name} for name in ("small", "large")
    ]
    settings = {"MODELS": json.dumps(models), "DRAIN_S": "0"}
    async with run_emulator(settings, "--port", "0") as server:
        await server.wait_until_listening()
        async with open_console(server, browser) as console:
            await console.go()
            choice = console.page.get_by_label("Model", exact=True)
            await expect(choice.locator("option")).to_have_text(["small", "large"])
            for name in ("large", "small"):
                await choice.select_option(name)
                for kind in ("RunPod job", "Completion", "Chat", "Response", "Message"):
                    await console.ask("hello", kind)
                    await expect(console.text).to_have_text(name)
                    await console.wait_for_end()
                    row = console.page.locator(".answer .row", has_text="Answer").first
                    await expect(row.get_by_text(name, exact=True)).to_be_visible()
            console.check()


async def set_health(console: ConsolePage, state: str, **reasons: str) -> None:
    engine = {**ENGINE, "state": state, **reasons}
    models = [{"id": "small", **engine}, {"id": "large", **ENGINE, "state": "ready"}]
    body = {**HEALTH, "engine": engine, "models": models}
    await console.page.route(f"{console.url}/health", lambda route: route.fulfill(json=body))


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_every_page_says_why_an_engine_does_not_run(
    browser: Browser, script: ScriptFactory, size: dict[str, int]
) -> None:
    settings = {"MODEL_PATH": str(script()), "DRAIN_S": "0"}
    async with run_emulator(settings, "--port", "0") as server:
        await server.wait_until_listening()
        async with open_console(server, browser, viewport=size) as console:
            await set_health(console, "dead", failure="<b>no such chip</b>")
            for name in PAGES:
                await console.go(name)
                await expect(console.page.get_by_label("State of the engine")).to_have_text(
                    "The engine of small is not available: <b>no such chip</b>."
                )
            slots = console.page.get_by_label("Slots", exact=True)
            await expect(slots).to_contain_text("The engine is not available, 2 waiting")
            await expect(slots).not_to_contain_text("0 of 4")
            await examine(console, "engine, dead")
            await set_health(console, "restarting", trouble="restarting in 3 s")
            await expect(console.page.get_by_label("State of the engine")).to_have_text(
                "The engine of small is being restarted: restarting in 3 s."
            )
            await set_health(console, "ready")
            await expect(console.page.get_by_label("State of the engine")).to_be_hidden()
            await expect(slots).to_contain_text("0 of 4 busy")
            console.check()
