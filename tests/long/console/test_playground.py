"""A prompt in the playground: streamed, stopped, judged, gone on with."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.long.console.browser import Visit, scripted, visit
from tests.waiting import poll_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOWLY: list[Any] = [{"text": f"word{at} ", "delay_ms": 40} for at in range(40)]
WHOLE = "".join(piece["text"] for piece in SLOWLY)
DIRTY = ["Assistant: ", "Here 🦀 it", " is", "<|im_end|>"]
KINDS = ("RunPod job", "Completion", "Chat")
# How long the text was in each frame that was drawn, until the answer's end.
WATCH = """
window.lengths = [];
(function look() {
  const text = document.querySelector(".stream-text");
  if (text !== null && text.textContent.length) window.lengths.push(text.textContent.length);
  requestAnimationFrame(look);
})();
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with scripted(
        tmp_path_factory.mktemp("playground"),
        {"when": "slowly", "pieces": SLOWLY},
        {"when": "for ever", "pieces": [{"text": "on ", "delay_ms": 10}], "repeat": -1},
        {"when": "dirty", "pieces": DIRTY},
        {"when": "lines", "pieces": ["one\n", "two\n\n", "three"]},
        {"pieces": ["I", " am"]},
    ) as found:
        yield found


async def painted(page: Page) -> list[int]:
    """Return the lengths of the answer that somebody could have seen, each one once."""
    lengths: list[int] = await page.evaluate("[...new Set(window.lengths)]")
    return lengths


@pytest.mark.parametrize("kind", KINDS)
async def test_prompt_is_painted_as_it_streams(
    browser: Browser, server: EmulatorProcess, kind: str
) -> None:
    async with visit(server, browser, init=WATCH) as here:
        await here.go()
        await here.ask("slowly", kind)
        await here.ended()
        await expect(here.text).to_have_text(WHOLE)
        seen = await painted(here.page)
        # More than one paint before the end, each of more than the one before.
        assert len(seen) > 2
        assert seen == sorted(seen)
        assert (await here.fact("First token")).endswith("s")
        assert (await here.fact("Tokens")).endswith("+ 40")
        # No faster than the script lets it.
        assert 0 < float(await here.fact("Tokens/s")) <= 45
        assert await here.fact("Finish") == "stop"
        panel = await here.tab("Verdict")
        await expect(panel).to_contain_text("Intent general")
        panel = await here.tab("JSON")
        await expect(panel).to_contain_text('"finish_reason": "stop"')
        here.check()


async def test_embedded_model_answers(browser: Browser, model_path: Path) -> None:
    async with run_emulator({"MODEL_PATH": str(model_path)}, "--port", "0") as server:
        await server.wait_until_listening()
        async with visit(server, browser, init=WATCH) as here:
            await here.go()
            await here.page.get_by_label("max_tokens", exact=True).fill("24")
            await here.page.get_by_label("temperature", exact=True).fill("0")
            await here.ask("Name three colours.", "Chat")
            await here.ended()
            assert len(await painted(here.page)) > 1
            assert int((await here.fact("Tokens")).split("+ ")[1]) <= 24
            assert await here.text.inner_text() != ""
            here.check()


async def test_each_delta_and_its_time_can_be_seen(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with visit(server, browser) as here:
        await here.go()
        await here.ask("slowly")
        await here.page.get_by_role("switch", name="Boundaries").click()
        await here.page.get_by_role("switch", name="Timing").click()
        await here.ended()
        deltas = here.page.locator(".delta")
        await expect(deltas).to_have_count(len(SLOWLY))
        assert await deltas.all_inner_texts() == [piece["text"] for piece in SLOWLY]
        title = await deltas.nth(7).get_attribute("title")
        assert title is not None
        assert title.startswith("#8 · +")
        await expect(here.page.locator(".rhythm")).to_contain_text("Last 39 gaps")
        here.check()


@pytest.mark.parametrize("kind", ["RunPod job", "Completion"])
async def test_running_is_stopped(browser: Browser, server: EmulatorProcess, kind: str) -> None:
    async with visit(server, browser) as here, server.client() as client:
        await here.go()
        await here.page.get_by_label("max_tokens", exact=True).fill("100000")
        await here.ask("for ever", kind)
        await expect(here.text).to_contain_text("on on on")
        await here.page.keyboard.press("Escape")
        await here.ended("Stopped")

        async def idle() -> bool:
            return bool((await client.get("/health")).json()["engine"]["running"] == 0)

        await poll_until(idle)
        if kind == "RunPod job":
            jobs = (await client.get("/requests")).json()["requests"]
            assert jobs[0]["status"] == "CANCELLED"
        await expect(here.page.locator(".button.primary", has_text="Run")).to_be_visible()
        here.check()


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_taken_out_is_struck_through(
    browser: Browser, server: EmulatorProcess, kind: str
) -> None:
    async with visit(server, browser) as here:
        await here.go()
        await here.ask("dirty", kind)
        await here.ended()
        panel = await here.tab("Changes")
        assert await panel.locator("del").all_inner_texts() == ["Assistant: ", "<|im_end|>"]
        await expect(panel.locator(".diff")).to_have_text("".join(DIRTY))
        await expect(panel).to_contain_text("role_label")
        here.check()


async def test_wrong_value_is_said_where_it_is(browser: Browser, server: EmulatorProcess) -> None:
    async with visit(server, browser) as here:
        await here.go()
        field = here.page.get_by_label("temperature", exact=True)
        await field.fill("3")
        await here.ask("x")
        await here.ended("Failed")
        said = "input.sampling_params.temperature must be a number from 0 to 2, got 3"
        await expect(here.page.locator(".field-error:visible")).to_have_text(said)
        await expect(field).to_have_attribute("aria-invalid", "true")
        await expect(field).to_be_focused()
        await field.fill("")
        await here.ask("x")
        await here.ended()
        await expect(here.page.locator(".field-error:visible")).to_have_count(0)
        here.check()


async def test_stop_sequences_end_it(browser: Browser, server: EmulatorProcess) -> None:
    async with visit(server, browser) as here:
        await here.go()
        stop = here.page.get_by_label("stop", exact=True)
        await stop.fill("never")
        await stop.press("Enter")
        await stop.fill("\\n\\n")
        await stop.press("Enter")
        assert await here.page.locator(".chip code").all_inner_texts() == ["never", "\\n\\n"]
        await here.ask("lines", "Completion")
        await here.ended()
        assert await here.fact("Finish") == 'stop "\\n\\n"'
        await expect(here.text).to_have_text("one\ntwo")
        here.check()


async def test_chat_is_continued(browser: Browser, server: EmulatorProcess) -> None:
    async with visit(server, browser) as here:
        await here.go()
        await here.ask("Who are you?", "Chat")
        await here.ended()
        await here.page.get_by_role("button", name="Continue the chat").click()
        await here.page.keyboard.type("Really?")
        sent = await posted(here)
        assert sent["messages"] == [
            {"role": "user", "content": "Who are you?"},
            {"role": "assistant", "content": "I am"},
            {"role": "user", "content": "Really?"},
        ]
        here.check()


async def posted(here: Visit) -> dict[str, Any]:
    """Run what is in the form; return the body that was sent."""
    async with here.page.expect_request("**/v1/chat/completions") as found:
        await here.page.keyboard.press("Control+Enter")
    body: dict[str, Any] = json.loads((await found.value).post_data or "")
    await here.ended()
    return body
