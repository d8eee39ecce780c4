"""What "copy as" gives is run as it stands, and says what the page said."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import scripted, visit

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "a-key-of-the-tests"
# What shells, Python and JavaScript would make something of.
PROMPT = 'It\'s "a" `$HOME` \\n \\ %s ${x} {y} #1 é 🦀\n\'\'\'second""" line!'
ANSWER = ["So ", "it's ", "🦀."]
LANGUAGES = ("curl", "Python", "JavaScript")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    # An answer for exactly this prompt, and for no other one.
    exactly = {"when": 'second""" line!', "pieces": ANSWER}
    async with scripted(
        tmp_path_factory.mktemp("snippets"),
        exactly,
        {"pieces": ["another prompt"]},
        environment={"API_KEYS": KEY},
    ) as found:
        yield found


async def run(language: str, program: str, folder: Path) -> str:
    """Run a program as somebody would who has pasted it, with the key where it says."""
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
        out, wrong = await process.communicate()
    assert process.returncode == 0, wrong.decode()
    return out.decode()


def streamed(output: str, chat: bool) -> str:
    """Put together what curl printed of a stream."""
    said = ""
    for line in output.splitlines():
        if line.startswith("data: {"):
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            said += (choice["delta"].get("content") or "") if chat else choice["text"]
    return said


@pytest.mark.parametrize("kind", ["RunPod job", "Completion", "Chat"])
async def test_what_is_copied_works(
    browser: Browser, server: EmulatorProcess, tmp_path: Path, kind: str
) -> None:
    async with visit(server, browser) as here:
        page = here.page
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await page.goto(f"{here.url}/")
        await page.get_by_label("Key", exact=True).fill(KEY)
        await page.keyboard.press("Enter")
        await page.get_by_label("temperature", exact=True).wait_for()
        await page.get_by_label("temperature", exact=True).fill("0.5")
        await page.get_by_label("stop", exact=True).fill("\\n'\"")
        await here.ask(PROMPT, kind)
        await here.ended()
        await expect(here.text).to_have_text("".join(ANSWER))
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
                    said = streamed(output, kind == "Chat") if language == "curl" else output
                    assert said.removesuffix("\n") == "".join(ANSWER)
                    continue
                told = json.loads(output)
                choice = (told["output"] if kind == "RunPod job" else told)["choices"][0]
                text = choice["message"]["content"] if kind == "Chat" else choice["text"]
                assert text == "".join(ANSWER)
                assert choice.get("deltas") == (ANSWER if stream else None)
