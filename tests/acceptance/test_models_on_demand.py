"""Three models, memory for one of them, and clients that want all of them in a random order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.models.llama import write_llama_model
from tests.waiting import wait_until

NAMES = ("small", "medium", "large")
CLIENTS = 8
# Room for one: the process of a model counts as 100 MB.
BUDGET_MB = 150
LOADED = "model loaded"
# A text of some words in any of the APIs.
ANSWER = re.compile(r'"(content|text)": ?" ?\w')


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmulatorProcess]:
    models: list[dict[str, str]] = []
    for name in NAMES:
        path = tmp_path / f"{name}.gguf"
        write_llama_model(path, seed=len(models))
        models.append({"path": str(path)})
    settings = {
        "MODELS": json.dumps(models),
        "MODEL_MEMORY_MB": str(BUDGET_MB),
        "CONTEXT_LENGTH": "512",
        "MAX_CONCURRENCY": "2",
        "THREADS": "2",
    }
    async with run_emulator(settings, "--port", "0") as running:
        await running.wait_until_listening()
        yield running


def engine_processes(server: EmulatorProcess) -> Iterator[int]:
    """Yield the ids of the server's engine processes."""
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        with suppress(OSError):
            for pid in (task / "children").read_text().split():
                if b"engine.hosts.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    yield int(pid)


def resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class Watch:
    """The most memory and processes that the engines had at one time."""

    peak_mb: float = 0.0
    peak_processes: int = 0
    durations_s: list[float] = field(default_factory=list)


@asynccontextmanager
async def watching(server: EmulatorProcess) -> AsyncIterator[Watch]:
    watch = Watch()

    async def measure() -> None:
        while True:
            sizes = [resident_mb(pid) for pid in engine_processes(server)]
            watch.peak_mb = max(watch.peak_mb, sum(sizes))
            watch.peak_processes = max(watch.peak_processes, len(sizes))
            await asyncio.sleep(0.02)

    task = asyncio.create_task(measure())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def request_for(model: str, number: int) -> tuple[str, dict[str, Any]]:
    """Return the route and the body of a request, of each API in turn."""
    messages = [{"role": "user", "content": "Say hello."}]
    if number % 3 == 0:
        options = {"num_predict": 4, "temperature": 0}
        return "/api/chat", {"model": model, "messages": messages, "options": options}
    body = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0}
    if number % 3 == 1:
        return "/v1/chat/completions", body | {"stream": True}
    return "/v1/messages", body


@pytest.mark.long
@pytest.mark.long_except("24")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [24, 200])
async def test_requests_for_models_that_do_not_fit_together_are_all_answered(
    server: EmulatorProcess, count: int
) -> None:
    order = random.Random(11)
    requests = iter([(order.choice(NAMES), number) for number in range(count)])
    async with watching(server) as watch, server.client() as client:

        async def ask() -> None:
            for model, number in requests:
                route, body = request_for(model, number)
                start = time.monotonic()
                response = await client.post(route, json=body, timeout=300)
                watch.durations_s.append(time.monotonic() - start)
                assert response.status_code == 200, response.text
                assert ANSWER.search(response.text)

        await asyncio.gather(*(ask() for _ in range(CLIENTS)))
        listed = (await client.get("/v1/models")).json()["data"]
        running = (await client.get("/api/ps")).json()["models"]
    assert len(watch.durations_s) == count
    assert watch.peak_processes == 1
    assert 0 < watch.peak_mb <= BUDGET_MB
    assert sorted(each["state"] for each in listed) == ["ready", "unloaded", "unloaded"]
    assert len(running) == 1
    loads = sum(LOADED in line for line in server.lines)
    print(  # noqa: T201
        f"{count} requests, {loads} loads, longest {max(watch.durations_s):.1f} s, "
        f"{watch.peak_mb:.0f} MB of {BUDGET_MB}"
    )
    # Each request waits for the turns of the two other models at most, and for its own load.
    assert loads < count


async def test_engine_killed_during_a_load_answers_after_the_next_load(
    server: EmulatorProcess,
) -> None:
    async with server.client() as client:
        await wait_until(lambda: any(LOADED in line for line in server.lines))
        (first,) = engine_processes(server)
        route, body = request_for("medium", 2)
        answer = asyncio.create_task(client.post(route, json=body, timeout=60))
        second = await wait_until(
            lambda: next((pid for pid in engine_processes(server) if pid != first), None)
        )
        os.kill(second, signal.SIGKILL)
        response = await answer
        other = await client.post(route, json=body | {"model": "large"}, timeout=60)
    assert response.status_code == other.status_code == 200, response.text
