"""The examples of docs/handler-examples.md, all of them as handlers of one server."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.acceptance.page_checks import EXAMPLES_PAGE
from tests.acceptance.pages import ROOT, blocks
from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.long.console.browser import chromium
from tests.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE = ROOT / EXAMPLES_PAGE
PAGE_PORT = free_port()
_NAME = re.compile(r"# (\w+)\.py\n")


def examples() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Yield the name, the text, the job and the answer of each example."""
    texts = [(block.language, block.text) for block in blocks(PAGE)]
    for at, (language, text) in enumerate(texts):
        if language == "python" and (name := _NAME.match(text)):
            job, answer = (json.loads(each) for _, each in texts[at + 1 : at + 3])
            yield name[1], text, job, answer


EXAMPLES = list(examples())


def url(server: EmulatorProcess) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("examples")
    options: list[str] = []
    for name, text, _, _ in EXAMPLES:
        (folder / f"{name}.py").write_text(text)
        options += ["--handler", str(folder / f"{name}.py")]
    settings = {
        "HOME": str(folder),
        "DRAIN_S": "0",
        "CORS_ORIGINS": f"http://127.0.0.1:{PAGE_PORT}",
    }
    async with run_emulator(settings, *options, "--port", "0") as running:
        await running.wait_until_listening()
        yield running


@pytest.mark.parametrize(("name", "job", "answer"), [(n, j, a) for n, _, j, a in EXAMPLES])
async def test_example_has_the_answer_of_the_page(
    server: EmulatorProcess, name: str, job: dict[str, Any], answer: dict[str, Any]
) -> None:
    body = json.loads(json.dumps(job).replace("http://127.0.0.1:8000", url(server)))
    async with server.client() as client:
        sent = (await client.post(f"/v2/{name}/run", json=body)).json()
        path = f"/v2/{name}/status-sync/{sent['id']}"
        ended = (await client.get(path, params={"wait": 60_000})).json()
    assert {key: ended.get(key) for key in answer} == answer, ended
    if name == "stream_only":
        assert "return_aggregate_stream" in ended["message"]


@contextmanager
def page_server(folder: Path, port: int) -> Iterator[str]:
    """Serve a folder as `python3 -m http.server` does; yield the address."""
    answer = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", port), answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.shutdown()
            thread.join()


async def test_page_of_the_example_shows_the_progress(
    server: EmulatorProcess, tmp_path: Path
) -> None:
    (text,) = (block.text for block in blocks(PAGE) if block.language == "html")
    text = text.replace("http://127.0.0.1:8000/v2/my-worker", f"{url(server)}/v2/progress")
    (tmp_path / "progress.html").write_text(text)
    async with chromium() as browser:
        with page_server(tmp_path, PAGE_PORT) as address:
            page = await browser.new_page()
            await page.add_init_script(
                "window.values = []; setInterval(() => "
                "values.push(document.querySelector('progress')?.value), 20)"
            )
            await page.goto(f"{address}/progress.html")
            await expect(page.locator("output")).to_have_text("COMPLETED", timeout=60_000)
            shown = set(await page.evaluate("window.values"))
    assert len(shown & {20, 40, 60, 80}) >= 2, shown
