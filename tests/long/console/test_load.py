"""Twenty thousand tokens: the page stays quick, and forgets them again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, CDPSession, expect

from tests.integration.emulator.processes import EmulatorProcess
from tests.long.console.browser import Visit, scripted, visit

pytestmark = pytest.mark.asyncio(loop_scope="module")

Record = Callable[[str, object], None]

TOKENS = 20_000
LONGEST_MS = 100
# What of one answer may stay with the page is that answer, which the next one replaces.
MOST_GROWTH_BYTES = 3_000_000
OBSERVE = """
window.long = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.long.push(Math.round(entry.duration));
}).observe({ entryTypes: ["longtask"] });
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    words = ["a ", "handful ", "of ", "words, "]
    burst, steady = [*words, "and\n"], [*words, {"text": "and\n", "delay_ms": 1}]
    async with scripted(
        tmp_path_factory.mktemp("load"),
        # As fast as they come.
        {"when": "burst", "pieces": burst, "repeat": TOKENS // len(burst)},
        # Some thousand a second, so that there are many frames in it.
        {"when": "steady", "pieces": steady, "repeat": TOKENS // len(steady)},
    ) as found:
        yield found


async def stream(here: Visit, prompt: str, kind: str) -> None:
    await here.page.get_by_label("max_tokens", exact=True).fill(str(2 * TOKENS))
    await here.ask(prompt, kind)
    await here.ended()
    assert (await here.fact("Tokens")).endswith(f"+ {TOKENS:,}")


def busiest_ms(trace: bytes) -> float:
    """Return the most time that the page's main thread has worked on one task.

    Not how long that took: on a busy machine others work in between.
    """
    events: list[dict[str, Any]] = json.loads(trace)["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    worked: list[float] = [
        event["tdur"] / 1000
        for event in events
        if (event["pid"], event["tid"]) in mains
        and event["name"].endswith("RunTask")
        and "tdur" in event
    ]
    assert worked
    return float(max(worked))


@pytest.mark.parametrize(
    ("kind", "prompt", "bounded"),
    [
        ("RunPod job", "burst", False),
        ("RunPod job", "steady", True),
        ("Completion", "burst", True),
        ("Completion", "steady", False),
    ],
)
async def test_long_stream_does_not_hold_up_the_page(
    browser: Browser,
    server: EmulatorProcess,
    record_property: Record,
    kind: str,
    prompt: str,
    bounded: bool,
) -> None:
    async with visit(server, browser, init=OBSERVE) as here:
        await here.go()
        if bounded:
            await here.page.get_by_role("switch", name="Boundaries").click()
            await here.page.get_by_role("switch", name="Timing").click()
        await here.page.evaluate("window.long.length = 0")
        await browser.start_tracing(page=here.page, categories=["toplevel"])
        try:
            await stream(here, prompt, kind)
        finally:
            trace = await browser.stop_tracing()
        seen = await here.page.evaluate("window.long")
        worked = busiest_ms(trace)
        record_property("worked_ms", round(worked))
        record_property("long_tasks_ms", seen)
        assert worked < LONGEST_MS, f"worked {worked:.0f} ms on one task; long ones took {seen} ms"
        nodes = await here.page.evaluate("document.querySelector('.stream-text').childNodes.length")
        assert nodes <= 600
        here.check()


async def heap_bytes(session: CDPSession) -> int:
    await session.send("HeapProfiler.collectGarbage")
    return int((await session.send("Runtime.getHeapUsage"))["usedSize"])


async def test_memory_is_given_back(
    browser: Browser, server: EmulatorProcess, record_property: Record
) -> None:
    async with visit(server, browser) as here:
        await here.go()
        session = await here.page.context.new_cdp_session(here.page)
        sizes: list[int] = []
        for _ in range(6):
            await stream(here, "burst", "Completion")
            sizes.append(await heap_bytes(session))
        counted = await session.send("Memory.getDOMCounters")
        record_property("heap_bytes", sizes)
        record_property("nodes", counted["nodes"])
        # The first two fill what is kept of any answer.
        assert max(sizes[2:]) - sizes[1] < MOST_GROWTH_BYTES, f"heap after each stream: {sizes}"
        assert counted["nodes"] < 5_000
        await expect(here.text).to_be_visible()
        here.check()
