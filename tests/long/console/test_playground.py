"""A prompt in the playground: streamed, stopped, validated and continued."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.long.console.browser import ConsolePage, open_console, run_scripted_server
from tests.waiting import poll_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOW_PIECES: list[Any] = [{"text": f"word{at} ", "delay_ms": 40} for at in range(40)]
COMPLETE_TEXT = "".join(piece["text"] for piece in SLOW_PIECES)
DIRTY = ["Assistant: ", "Here 🦀 it", " is", "<|im_end|>"]
# A message has no place for the result of validation.
KINDS = ("RunPod job", "Completion", "Chat", "Response")
# How each kind says that the answer has ended by itself.
ENDS = {
    **dict.fromkeys(("RunPod job", "Completion", "Chat"), ("finish_reason", "stop")),
    "Response": ("status", "completed"),
    "Message": ("stop_reason", "end_turn"),
}
# Record the length of the text in each drawn frame until the answer ends.
WATCH = """
window.lengths = [];
(function look() {
  const text = document.querySelector(".stream-text:not(.reasoning *)");
  if (text !== null && text.textContent.length) window.lengths.push(text.textContent.length);
  requestAnimationFrame(look);
})();
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with run_scripted_server(
        tmp_path_factory.mktemp("playground"),
        {"when": "slowly", "pieces": SLOW_PIECES},
        {"when": "for ever", "pieces": [{"text": "on ", "delay_ms": 10}], "repeat": -1},
        {"when": "dirty", "pieces": DIRTY},
        {"when": "lines", "pieces": ["one\n", "two\n\n", "three"]},
        {"pieces": ["I", " am"]},
    ) as running_server:
        yield running_server


async def painted_lengths(page: Page) -> list[int]:
    """Return the distinct lengths of the answer in the drawn frames."""
    lengths: list[int] = await page.evaluate("[...new Set(window.lengths)]")
    return lengths


@pytest.mark.parametrize("kind", ENDS)
async def test_prompt_is_painted_as_it_streams(
    browser: Browser, server: EmulatorProcess, kind: str
) -> None:
    async with open_console(server, browser, init=WATCH) as console:
        await console.go()
        await console.ask("slowly", kind)
        await console.wait_for_end()
        await expect(console.text).to_have_text(COMPLETE_TEXT)
        lengths = await painted_lengths(console.page)
        # Several frames before the end, each with more text than the one before.
        assert len(lengths) > 2
        assert lengths == sorted(lengths)
        assert (await console.fact("First token")).endswith("s")
        assert (await console.fact("Tokens")).endswith("+ 40")
        # At most the rate of the script.
        assert 0 < float(await console.fact("Tokens/s")) <= 45
        name, value = ENDS[kind]
        assert await console.fact("Finish") == value
        if kind in KINDS:
            panel = await console.tab("Verdict")
            await expect(panel).to_contain_text("Intent general")
        panel = await console.tab("JSON")
        await expect(panel).to_contain_text(f'"{name}": "{value}"')
        console.check()


async def test_embedded_model_answers(browser: Browser, default_model_path: Path) -> None:
    async with run_emulator({"MODEL_PATH": str(default_model_path)}, "--port", "0") as server:
        await server.wait_until_listening()
        async with open_console(server, browser, init=WATCH) as console:
            await console.go()
            await console.page.get_by_label("max_tokens", exact=True).fill("24")
            await console.page.get_by_label("temperature", exact=True).fill("0")
            await console.ask("Name three colours.", "Chat")
            await console.wait_for_end()
            assert len(await painted_lengths(console.page)) > 1
            assert int((await console.fact("Tokens")).split("+ ")[1]) <= 24
            assert await console.text.inner_text() != ""
            console.check()


async def test_each_delta_is_marked_with_its_time(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        await console.ask("slowly")
        await console.page.get_by_role("switch", name="Boundaries").click()
        await console.page.get_by_role("switch", name="Timing").click()
        await console.wait_for_end()
        deltas = console.page.locator(".delta")
        await expect(deltas).to_have_count(len(SLOW_PIECES))
        assert await deltas.all_inner_texts() == [piece["text"] for piece in SLOW_PIECES]
        title = await deltas.nth(7).get_attribute("title")
        assert title is not None
        assert title.startswith("#8 · +")
        await expect(console.page.locator(".rhythm")).to_contain_text("Last 39 gaps")
        console.check()


@pytest.mark.parametrize("kind", ["RunPod job", "Completion"])
async def test_running_answer_can_be_stopped(
    browser: Browser, server: EmulatorProcess, kind: str
) -> None:
    async with open_console(server, browser) as console, server.client() as client:
        await console.go()
        await console.page.get_by_label("max_tokens", exact=True).fill("100000")
        await console.ask("for ever", kind)
        await expect(console.text).to_contain_text("on on on")
        await console.page.keyboard.press("Escape")
        await console.wait_for_end("Stopped")

        async def idle() -> bool:
            return bool((await client.get("/health")).json()["engine"]["running"] == 0)

        await poll_until(idle)
        if kind == "RunPod job":
            jobs = (await client.get("/requests")).json()["requests"]
            assert jobs[0]["status"] == "CANCELLED"
        await expect(console.page.locator(".button.primary", has_text="Run")).to_be_visible()
        console.check()


@pytest.mark.parametrize("kind", KINDS)
async def test_removed_text_is_struck_through(
    browser: Browser, server: EmulatorProcess, kind: str
) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        await console.ask("dirty", kind)
        await console.wait_for_end()
        panel = await console.tab("Changes")
        assert await panel.locator("del").all_inner_texts() == ["Assistant: ", "<|im_end|>"]
        await expect(panel.locator(".diff")).to_have_text("".join(DIRTY))
        await expect(panel).to_contain_text("role_label")
        console.check()


async def test_wrong_value_has_its_error_at_the_field(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        field = console.page.get_by_label("temperature", exact=True)
        await field.fill("3")
        await console.ask("x")
        await console.wait_for_end("Failed")
        message = "input.sampling_params.temperature must be a number from 0 to 2, got 3"
        await expect(console.page.locator(".field-error:visible")).to_have_text(message)
        await expect(field).to_have_attribute("aria-invalid", "true")
        await expect(field).to_be_focused()
        await field.fill("")
        await console.ask("x")
        await console.wait_for_end()
        await expect(console.page.locator(".field-error:visible")).to_have_count(0)
        console.check()


async def test_stop_sequences_end_the_answer(browser: Browser, server: EmulatorProcess) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        stop = console.page.get_by_label("stop", exact=True)
        await stop.fill("never")
        await stop.press("Enter")
        await stop.fill("\\n\\n")
        await stop.press("Enter")
        assert await console.page.locator(".chip code").all_inner_texts() == ["never", "\\n\\n"]
        await console.ask("lines", "Completion")
        await console.wait_for_end()
        assert await console.fact("Finish") == 'stop "\\n\\n"'
        await expect(console.text).to_have_text("one\ntwo")
        console.check()


async def test_chat_is_continued(browser: Browser, server: EmulatorProcess) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        await console.ask("Who are you?", "Chat")
        await console.wait_for_end()
        await console.page.get_by_label("Reply", exact=True).last.fill("Really?")
        body = await run_form(console)
        assert body["messages"] == [
            {"role": "user", "content": "Who are you?"},
            {"role": "assistant", "content": "I am"},
            {"role": "user", "content": "Really?"},
        ]
        console.check()


async def run_form(console: ConsolePage) -> dict[str, Any]:
    """Run the request of the form; return the body that was sent."""
    async with console.page.expect_request("**/v1/chat/completions") as request_info:
        await console.page.keyboard.press("Control+Enter")
    body: dict[str, Any] = json.loads((await request_info.value).post_data or "")
    await console.wait_for_end()
    return body
