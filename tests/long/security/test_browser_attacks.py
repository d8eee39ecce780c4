"""A page on another origin, in a real Chromium, against a server with a queued job."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import async_playwright

from tests.long.console.browser import ARGUMENTS, scripted

EVIL_NAME = "evil.example"
# Tries every way of sending a request that a page has; returns what the page could read.
ATTACK = """async ({base, job}) => {
  const readable = [], wait = [];
  const urls = [`${base}/v2/other/job-take/w`, `${base}/v2/other/job-take-batch/w`,
                `${base}/v2/other/requests`, `${base}/v1/models`];
  const posts = [`${base}/v2/other/cancel/${job}`, `${base}/v2/other/purge-queue`,
                 `${base}/v2/other/run`, `${base}/v2/other/job-done/w/${job}`];
  const body = '{"input": {"prompt": "x"}}';
  const read = (url, options) => fetch(url, {...options, signal: AbortSignal.timeout(5000)})
    .then(async (r) => { if (r.ok && r.type !== 'opaque') readable.push(url); }, () => {});
  for (const mode of ['cors', 'no-cors', 'same-origin']) {
    for (const url of urls) wait.push(read(url, {mode}));
    for (const url of posts) {
      wait.push(read(url, {mode, method: 'POST'}));
      for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'application/json'])
        wait.push(read(url, {mode, method: 'POST', body, headers: {'content-type': type}}));
      wait.push(read(url, {mode, method: 'POST', body: new Blob([body])}));
      const form = new FormData(); form.append('file', new Blob([body]), 'a');
      wait.push(read(url, {mode, method: 'POST', body: form}));
    }
  }
  for (const url of posts) navigator.sendBeacon(url, body);
  for (const url of urls) {
    for (const kind of ['img', 'script', 'iframe']) {
      const element = document.createElement(kind);
      element.src = url; document.body.append(element);
    }
    new EventSource(url).onopen = () => readable.push('EventSource ' + url);
    new WebSocket(url.replace('http', 'ws')).onopen = () => readable.push('WebSocket ' + url);
  }
  for (const url of posts)
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data']) {
      const frame = document.createElement('iframe'), form = document.createElement('form');
      frame.name = 'f' + Math.random(); document.body.append(frame);
      Object.assign(form, {action: url, method: 'post', enctype: type, target: frame.name});
      document.body.append(form); form.submit();
    }
  await Promise.all(wait);
  await new Promise((done) => setTimeout(done, 2000));
  return readable;
}"""


async def serve_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer any request with an empty page."""
    await reader.readuntil(b"\r\n\r\n")
    page = b"<!doctype html><title>x</title><body></body>"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n" % len(page) + page)
    await writer.drain()
    writer.close()


async def attack(folder: Path, *, rebound: bool, cors: bool = False) -> tuple[list[str], Any, str]:
    """Let the page attack; return what it read, the endpoint's jobs, and the queued job's id."""
    site = await asyncio.start_server(serve_page, "127.0.0.1", 0)
    page_port = site.sockets[0].getsockname()[1]
    page_url = f"http://localhost:{page_port}"
    environment = {"CORS_ORIGINS": page_url} if cors else {}
    chromium = shutil.which("chromium")
    assert chromium is not None, "this test needs Debian's package chromium"
    async with site, scripted(folder, {}, environment=environment) as server:
        async with server.client() as client:
            sent = await client.post("/v2/other/run", json={"input": {"prompt": "kept"}})
            job = sent.json()["id"]
            async with async_playwright() as playwright:
                rule = f"--host-resolver-rules=MAP {EVIL_NAME} 127.0.0.1"
                browser = await playwright.chromium.launch(
                    executable_path=chromium, args=[*ARGUMENTS, rule]
                )
                page = await browser.new_page()
                base = f"http://{EVIL_NAME if rebound else '127.0.0.1'}:{server.port}"
                # A rebound page has the server's port and its own name: the public page stands in.
                await page.goto(f"{base}/health" if rebound else page_url)
                read = await page.evaluate(ATTACK, {"base": base, "job": job})
                await browser.close()
            jobs = (await client.get("/v2/other/requests")).json()["requests"]
    return read, jobs, job


@pytest.mark.parametrize("rebound", [False, True], ids=["other-origin", "rebound-name"])
async def test_page_starts_leases_cancels_and_reads_nothing(tmp_path: Path, rebound: bool) -> None:
    read, jobs, job = await attack(tmp_path, rebound=rebound)
    assert read == []
    assert [(each["id"], each["status"]) for each in jobs] == [(job, "IN_QUEUE")]


async def test_page_named_by_cors_origins_reads_and_runs(tmp_path: Path) -> None:
    read, jobs, _ = await attack(tmp_path, rebound=False, cors=True)
    assert any(each.endswith("/v1/models") for each in read)
    assert any(each.endswith("/run") for each in read)
    assert len(jobs) > 1
