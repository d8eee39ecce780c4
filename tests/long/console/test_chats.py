"""Chats with reasoning and tool calls in the playground and on a job's page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import DESK, PHONE, ConsolePage, open_console, run_scripted_server
from tests.long.console.test_accessibility import examine

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
THOUGHT = "The user wants the weather."
TOOL = {
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
# The tools in the form of each API.
TOOLS: dict[str, Any] = {
    "Chat": [{"type": "function", "function": TOOL}],
    "Response": [{"type": "function", **TOOL}],
    "Message": [
        {
            "name": "weather",
            "description": TOOL["description"],
            "input_schema": TOOL["parameters"],
        }
    ],
}
PATHS = {"Chat": "/v1/chat/completions", "Response": "/v1/responses", "Message": "/v1/messages"}
REASONED = {"pieces": ["<think>", THOUGHT, "</think>", "It is ", "mild."]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    async with run_scripted_server(
        tmp_path_factory.mktemp("chats"),
        {"when": "rain today", "pieces": ["Sunny."]},
        {"when": "weather", "pieces": ["<think>", THOUGHT, "</think>", CALL[:30], CALL[30:]]},
        REASONED,
    ) as running_server:
        yield running_server


async def sent_body(console: ConsolePage, path: str, button: str) -> dict[str, Any]:
    """Press a button; return the body of the request that it sends."""
    async with console.page.expect_request(f"**{path}") as request_info:
        await console.page.get_by_role("button", name=button, exact=button == "Send").click()
    body: dict[str, Any] = json.loads((await request_info.value).post_data or "")
    await console.wait_for_end()
    return body


async def fill_tools(page: Page, tools: Any) -> None:
    await page.locator("summary", has_text="Other fields").click()
    await page.get_by_label("other fields", exact=True).fill(json.dumps({"tools": tools}))


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("kind", ["RunPod job", "Chat", "Response", "Message"])
async def test_reasoning_stands_apart_from_the_answer(
    browser: Browser, server: EmulatorProcess, kind: str, streams: bool
) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        if not streams:
            await console.page.get_by_role("switch", name="Stream").click()
        await console.ask("hello", kind)
        await console.wait_for_end()
        await expect(console.page.locator(".stream-text:visible")).to_have_text("It is mild.")
        fold = console.page.locator("details.reasoning")
        await expect(fold).not_to_have_attribute("open", "")
        await fold.locator("summary").click()
        await expect(fold.locator(".stream-text")).to_have_text(THOUGHT)
        console.check()


@pytest.mark.parametrize("kind", PATHS)
async def test_tool_is_called_and_its_result_sent(
    browser: Browser, server: EmulatorProcess, kind: str
) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        await console.page.locator(".choice").get_by_text(kind, exact=True).click()
        await fill_tools(console.page, TOOLS[kind])
        await console.ask("the weather, please", kind)
        await console.wait_for_end()
        calls = console.page.get_by_role("list", name="Tool calls").locator("visible=true")
        await expect(calls).to_contain_text("weather")
        await expect(calls).to_contain_text('"city": "Oslo"')
        await console.page.get_by_label("Result of weather").fill("rain today")
        body = await sent_body(console, PATHS[kind], "Send")
        await expect(console.text).to_have_text("Sunny.")
        assert body["tools"] == TOOLS[kind]
        turns = body["input"] if kind == "Response" else body["messages"]
        if kind == "Chat":
            (call,) = turns[1]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
            assert turns[2] == {"role": "tool", "tool_call_id": call["id"], "content": "rain today"}
        elif kind == "Response":
            assert [item.get("type") for item in turns] == [
                None,
                "function_call",
                "function_call_output",
            ]
            assert turns[1]["call_id"] == turns[2]["call_id"]
        else:
            (use,) = turns[1]["content"]
            assert use["input"] == {"city": "Oslo"}
            assert turns[2]["content"][0]["tool_use_id"] == use["id"]
        console.check()


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_chat_is_shown_with_its_turns_and_continued(
    browser: Browser, server: EmulatorProcess, size: dict[str, int]
) -> None:
    async with open_console(server, browser, viewport=size) as console:
        await console.go()
        await console.ask("Is it cold?", "Chat")
        await console.wait_for_end()
        for at in range(3):
            await (
                console.page.get_by_label("Reply", exact=True)
                .locator("visible=true")
                .last.fill(f"And in {at} hours?")
            )
            body = await sent_body(console, PATHS["Chat"], "Send")
        roles = [turn["role"] for turn in body["messages"]]
        assert roles == [*["user", "assistant"] * 3, "user"]
        assert body["messages"][1] == {"role": "assistant", "content": "It is mild."}
        turns = console.page.get_by_role("list", name="Messages", exact=True).locator("li.said")
        await expect(turns).to_have_count(4)
        await expect(turns.last).to_contain_text("And in 2 hours?")
        await expect(console.page.get_by_text("3 earlier messages")).to_be_visible()
        await examine(console, "chat")
        console.check()


async def test_job_with_tools_is_shown_and_opened_in_the_playground(
    browser: Browser, server: EmulatorProcess
) -> None:
    job_input = {
        "openai_route": "/v1/chat/completions",
        "openai_input": {
            "model": "script",
            "messages": [{"role": "user", "content": "the weather, please"}],
            "tools": TOOLS["Chat"],
        },
    }
    async with open_console(server, browser) as console, server.client() as client:
        job = (await client.post("/run", json={"input": job_input})).json()
        await console.go(f"jobs/{job['id']}")
        detail = console.page.locator("section.detail")
        await expect(detail.get_by_role("list", name="Tool calls")).to_contain_text("Oslo")
        await expect(detail.locator("details.reasoning summary")).to_contain_text("Reasoning")
        await console.page.get_by_role("link", name="Open in the playground").click()
        await expect(console.page.get_by_label("other fields", exact=True)).to_have_value(
            json.dumps({"tools": TOOLS["Chat"]}, indent=2)
        )
        console.check()


async def test_other_fields_are_checked_before_they_are_sent(
    browser: Browser, server: EmulatorProcess
) -> None:
    async with open_console(server, browser) as console:
        await console.go()
        await console.page.locator("summary", has_text="Other fields").click()
        box = console.page.get_by_label("other fields", exact=True)
        for text, message in (
            ("{", "The other fields are not JSON"),
            ("[]", "The other fields must be a JSON object."),
            ('{"prompt": "x"}', "The form has a place for prompt"),
        ):
            await box.fill(text)
            await console.page.keyboard.press("Control+Enter")
            await expect(console.page.get_by_role("alert").locator("visible=true")).to_contain_text(
                message
            )
        console.check()
