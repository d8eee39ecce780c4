"""Take the screenshots in docs/: a streaming chat in console.png, a handler's job in handler.png.

Start a server on a free port, open its console in Debian's chromium, and send a chat to the default
model, or a job to the handler in tools/picture_handler.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from PIL import Image
from playwright.async_api import Error as BrowserError
from playwright.async_api import Page, ViewportSize, async_playwright, expect

ROOT = Path(__file__).resolve().parents[1]
HANDLER = ROOT / "tools" / "picture_handler"
SIZE: ViewportSize = {"width": 1200, "height": 720}
COLOURS = 256
PROMPT = "How does photosynthesis work?"
# Long enough that the answer is still streaming on a fast machine when the screenshot is taken.
MAX_TOKENS = 400
# The screenshot is taken when the answer has this length, about half of the visible area.
MIN_ANSWER_CHARS = 450
MAX_ATTEMPTS = 3
LOAD_TIMEOUT_S = 120
ANSWER_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30


class ScreenshotError(Exception):
    """The screenshot cannot be taken; the message gives the reason."""


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def run_server(*options: str) -> AsyncIterator[str]:
    """Start a server with the default settings; yield its address."""
    port = free_port()
    kept_names = {"PATH", "HOME", "LANG"}
    environment = {name: value for name, value in os.environ.items() if name in kept_names}
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "emulator", "--port", str(port), "--db", ":memory:"),
            *options,
            cwd=ROOT,
            env={**environment, "DRAIN_S": "0"},
            stdout=log,
            stderr=log,
        )
        try:
            yield f"http://127.0.0.1:{port}"
        except Exception:
            if process.returncode is not None:
                log.seek(0)
                sys.stderr.write(log.read().decode())
                raise ScreenshotError("the server ended; its log is above") from None
            raise
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()


async def open_console(page: Page, url: str) -> None:
    """Open the playground and wait until the model is loaded, or the handler has started."""
    async with asyncio.timeout(LOAD_TIMEOUT_S):
        while True:
            try:
                await page.goto(url)
                break
            except Exception as error:
                if "ERR_CONNECTION_REFUSED" not in str(error):
                    raise
                await asyncio.sleep(0.2)
    await expect(page.locator("#status-text")).to_have_text("Ready", timeout=LOAD_TIMEOUT_S * 1000)


async def warm_up(page: Page, url: str) -> None:
    """Send a short request, because the first one after the start is slower than all others."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    await page.request.post(f"{url}/v1/chat/completions", data=body)


async def send_chat(page: Page) -> None:
    """Fill in the chat and send it."""
    await page.get_by_label("temperature", exact=True).wait_for()
    await page.locator(".choice label", has_text="Chat").click()
    await page.get_by_label("Content", exact=True).fill(PROMPT)
    await page.get_by_label("max_tokens", exact=True).fill(str(MAX_TOKENS))
    await page.get_by_label("temperature", exact=True).fill("0")
    timing = page.get_by_role("switch", name="Timing")
    if not await timing.is_checked():
        await timing.click()
    await page.locator(".button.primary", has_text="Run").click()


async def take_mid_stream(page: Page) -> bytes:
    """Send the chat and return a screenshot of the page while the answer is streaming.

    Raises:
        ScreenshotError: the answer had ended at each attempt.
    """
    long_enough = re.compile(rf"[\s\S]{{{MIN_ANSWER_CHARS},}}")
    badge = page.locator(".answer .badge").first
    for _ in range(MAX_ATTEMPTS):
        await send_chat(page)
        text = page.locator(".stream-text:visible")
        await expect(text).to_have_text(long_enough, timeout=ANSWER_TIMEOUT_S * 1000)
        picture = await page.screenshot()
        if await badge.inner_text() == "Generating":
            await page.keyboard.press("Escape")
            return picture
    raise ScreenshotError(f"the answer ended before its picture was taken, {MAX_ATTEMPTS} times")


async def take_job(page: Page) -> bytes:
    """Send the handler's example as a job and return a screenshot of its result."""
    await page.locator(".button.primary", has_text="Run").click()
    await expect(page.locator(".answer .badge").first).to_have_text("Done")
    await expect(page.locator(".answer img").first).to_be_visible()
    return await page.screenshot()


def reduce_colours(picture: bytes) -> bytes:
    """Convert the picture to a palette: a fraction of the bytes, without a visible difference."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    reduced = image.quantize(COLOURS, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    reduced.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


async def take_screenshot(*, of_handler: bool) -> bytes:
    """Return the screenshot of a chat, or of a handler's job, as a small PNG."""
    browser_path = shutil.which("chromium")
    if browser_path is None:
        raise ScreenshotError("the browser is missing: install Debian's package chromium")
    options = ("--handler", str(HANDLER)) if of_handler else ()
    async with run_server(*options) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            page = await browser.new_page(viewport=SIZE, color_scheme="light")
            await open_console(page, url)
            if of_handler:
                return reduce_colours(await take_job(page))
            await warm_up(page, url)
            return reduce_colours(await take_mid_stream(page))
        finally:
            await browser.close()


def main() -> int:
    """Take the screenshot; return the exit code."""
    words = sys.argv[1:]
    of_handler = words[:1] == ["--handler"]
    if len(words) != 1 + of_handler:
        print("usage: python tools/screenshot.py [--handler] FILE.png", file=sys.stderr)
        return 2
    path = Path(words[-1])
    try:
        picture = asyncio.run(take_screenshot(of_handler=of_handler))
    except (ScreenshotError, BrowserError, AssertionError, TimeoutError) as error:
        print(f"no screenshot: {error}", file=sys.stderr)
        return 1
    path.write_bytes(picture)
    print(f"{path}: {len(picture):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
