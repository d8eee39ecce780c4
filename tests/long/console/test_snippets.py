"""Programs from "copy as" run unchanged and print the same answer as the page."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import open_console, run_scripted_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "a-key-of-the-tests"
# Characters with a special meaning in shells, Python or JavaScript.
PROMPT = 'It\'s "a" `$HOME` \\n \\ %s ${x} {y} #1 é 🦀\n\'\'\'second""" line!'
ANSWER = ["So ", "it's ", "🦀."]
LANGUAGES = ("curl", "Python", "JavaScript")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    # This answer is for exactly this prompt.
    answer_to_prompt = {"when": 'second""" line!', "pieces": ANSWER}
    async with run_scripted_server(
        tmp_path_factory.mktemp("snippets"),
        answer_to_prompt,
        {"pieces": ["another prompt"]},
        environment={"API_KEYS": KEY},
    ) as running_server:
        yield running_server


async def run(language: str, program: str, folder: Path) -> str:
    """Run a pasted program with the API key in its environment; return its output."""
    arguments = {
        "curl": ["bash", "-euc", program],
        "Python": [sys.executable, "-c", program],
        "JavaScript": ["node", "ask.mjs"],
    }
    (folder / "ask.mjs").write_text(program)
    process = await asyncio.create_subprocess_exec(
        *arguments[language],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "API_KEY": KEY, "PYTHONIOENCODING": "utf-8"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    return stdout.decode()


def text_of(body: Any, kind: str) -> str:
    """Return the text of an answer, or the new text of one of its events."""
    match kind, body:
        case "Response", {"output": [{"content": [{"text": text}]}]}:
            return str(text)
        case "Message", {"content": [{"text": text}]} | {"delta": {"text": text}}:
            return str(text)
        case "Response", {"type": "response.output_text.delta", "delta": text}:
            return str(text)
        case _, {"choices": [{"message": {"content": text}} | {"text": text}]}:
            return str(text)
        case _, {"choices": [{"delta": {"content": text}}]}:
            return text or ""
        case _:
            return ""


def join_stream(output: str, kind: str) -> str:
    """Join the text of a stream that curl printed."""
    events = [line for line in output.splitlines() if line.startswith("data: {")]
    return "".join(text_of(json.loads(line.removeprefix("data: ")), kind) for line in events)


@pytest.mark.parametrize("kind", ["RunPod job", "Completion", "Chat", "Response", "Message"])
async def test_copied_program_runs_and_prints_the_answer(
    browser: Browser, server: EmulatorProcess, tmp_path: Path, kind: str
) -> None:
    async with open_console(server, browser) as console:
        page = console.page
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await page.goto(f"{console.url}/")
        await page.get_by_label("Key", exact=True).fill(KEY)
        await page.keyboard.press("Enter")
        await page.get_by_label("temperature", exact=True).wait_for()
        await page.get_by_label("temperature", exact=True).fill("0.5")
        if kind != "Message":
            await page.get_by_label("stop", exact=True).fill("\\n'\"")
        await console.ask(PROMPT, kind)
        await console.wait_for_end()
        await expect(console.text).to_have_text("".join(ANSWER))
        for stream in (True, False):
            if not stream:
                await page.get_by_role("switch", name="Stream").click()
            for language in LANGUAGES:
                await page.get_by_role("button", name=language, exact=True).click()
                await page.locator(".toast", has_text=language).last.wait_for()
                program = str(await page.evaluate("navigator.clipboard.readText()"))
                assert KEY not in program
                output = await run(language, program, tmp_path)
                if stream and kind != "RunPod job":
                    text_of_output = join_stream(output, kind) if language == "curl" else output
                    assert text_of_output.removesuffix("\n") == "".join(ANSWER)
                    continue
                body = json.loads(output)
                if kind == "RunPod job":
                    body = body["output"]
                    assert body["choices"][0].get("deltas") == (ANSWER if stream else None)
                assert text_of(body, kind) == "".join(ANSWER)
