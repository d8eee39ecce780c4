"""Many clients of all APIs at once: what they get, how long it takes, and what the server keeps.

`python -m tests.security.load` runs them for a minute against a server of its own, whose engine is
the scripted one, and prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.security.type_cases import CAPABILITIES, MODEL

CLIENTS, SECONDS = 32, 60.0
_SEED = 1
_TURN = [{"role": "user", "content": "tell me"}]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
# A quarter of the streams is left after the first part of the answer.
_LEAVES = 0.25
_FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT")
_PIECES = [f"word{number} " for number in range(40)]
_POLL_S, _SETTLE_S = 0.1, 60.0
_METRIC = re.compile(r"^(\w+?)(\{[^}]*\})? (\S+)$", re.MULTILINE)

Call = Callable[["Load", httpx2.AsyncClient], Awaitable[int]]


@dataclass
class Load:
    """What the clients have seen; `jobs` has the ids of the jobs that were accepted."""

    chance: random.Random = field(default_factory=lambda: random.Random(_SEED))
    durations_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    lost_jobs: list[str] = field(default_factory=list)
    responses: list[str] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)
    before_bytes: int = 0
    peak_bytes: int = 0
    settled_bytes: int = 0
    files: tuple[int, int] = (0, 0)
    ended_jobs: int = 0

    def table(self) -> str:
        """Return a table of the calls, and a line each for the jobs, the memory and /health."""
        rows = [f"{'call':32} {'count':>7} {'p50 ms':>8} {'p99 ms':>8}"]
        for name, durations_s in sorted(self.durations_s.items()):
            rows.append(
                f"{name:32} {len(durations_s):7} {_ms(durations_s, 50):8.1f} "
                f"{_ms(durations_s, 99):8.1f}"
            )
        statuses = dict(sorted(self.statuses.items()))
        rows.append(f"requests: {self.statuses.total()}, by status {statuses}")
        rows.append(
            f"jobs: {len(self.jobs)} accepted, {self.ended_jobs} ended, {len(self.lost_jobs)} lost"
        )
        rows.append(
            f"memory in MB: {self.before_bytes / 1e6:.0f} before, {self.peak_bytes / 1e6:.0f} at "
            f"most, {self.settled_bytes / 1e6:.0f} after; open files: {self.files}"
        )
        rows.append(
            f"/health of another client: p50 {_ms(self.health_s, 50):.1f} ms, p99 "
            f"{_ms(self.health_s, 99):.1f} ms, longest {max(self.health_s) * 1000:.1f} ms"
        )
        return "\n".join(rows)


def _ms(durations_s: list[float], percent: int) -> float:
    if len(durations_s) < 2:
        return 1000 * sum(durations_s)
    return 1000 * statistics.quantiles(durations_s, n=100, method="inclusive")[percent - 1]


def _whole(route: str, body: dict[str, Any]) -> Call:
    async def call(load: Load, client: httpx2.AsyncClient) -> int:
        return (await client.post(route, json=body)).status_code

    return call


def _streamed(route: str, body: dict[str, Any]) -> Call:
    async def call(load: Load, client: httpx2.AsyncClient) -> int:
        leaves = load.chance.random() < _LEAVES
        async with client.stream("POST", route, json=body | {"stream": True}) as response:
            async for _ in response.aiter_bytes():
                if leaves:
                    break
            return response.status_code

    return call


def _read(route: str) -> Call:
    async def call(load: Load, client: httpx2.AsyncClient) -> int:
        return (await client.get(route)).status_code

    return call


async def _submit(load: Load, client: httpx2.AsyncClient) -> int:
    job_input = {"messages": _TURN, "stream": load.chance.random() < 0.5}
    response = await client.post("/run", json={"input": job_input})
    if response.status_code == 200:
        load.jobs.append(response.json()["id"])
    return response.status_code


async def _run_routed(load: Load, client: httpx2.AsyncClient) -> int:
    call = {"openai_route": "/v1/chat/completions", "openai_input": {"messages": _TURN}}
    response = await client.post("/runsync", json={"input": call})
    if response.status_code == 200:
        load.jobs.append(response.json()["id"])
    return response.status_code


async def _visit_job(load: Load, client: httpx2.AsyncClient) -> int:
    if not load.jobs:
        return await _submit(load, client)
    job = load.chance.choice(load.jobs)
    action = load.chance.choice(("status", "status", "stream", "cancel"))
    if action == "cancel":
        return (await client.post(f"/cancel/{job}")).status_code
    return (await client.get(f"/{action}/{job}")).status_code


async def _respond_in_background(load: Load, client: httpx2.AsyncClient) -> int:
    response = await client.post("/v1/responses", json={"input": "tell me", "background": True})
    if response.status_code == 200:
        load.responses.append(response.json()["id"])
        load.jobs.append(response.json()["id"].removeprefix("resp_"))
    return response.status_code


async def _visit_response(load: Load, client: httpx2.AsyncClient) -> int:
    if not load.responses:
        return await _respond_in_background(load, client)
    response = load.chance.choice(load.responses)
    stream = "?stream=true" if load.chance.random() < 0.5 else ""
    return (await client.get(f"/v1/responses/{response}{stream}")).status_code


async def _malformed(load: Load, client: httpx2.AsyncClient) -> int:
    route = load.chance.choice(("/run", "/v1/chat/completions", "/v1/messages", "/api/chat"))
    body = load.chance.choice((b"{", b"[]", b'{"messages": 5}', b'{"input": null}', b"\xff"))
    headers = {"content-type": "application/json"}
    return (await client.post(route, content=body, headers=headers)).status_code


async def _start_batch(load: Load, client: httpx2.AsyncClient) -> int:
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": _TURN},
    }
    files = {"file": ("a.jsonl", json.dumps(line))}
    response = await client.post("/v1/files", data={"purpose": "batch"}, files=files)
    if response.status_code != 200:
        return response.status_code
    body = {
        "input_file_id": response.json()["id"],
        "endpoint": line["url"],
        "completion_window": "24h",
    }
    return (await client.post("/v1/batches", json=body)).status_code


_MESSAGE = {"model": MODEL, "max_tokens": 50, "messages": _TURN}
CALLS: dict[str, Call] = {
    "chat": _whole("/v1/chat/completions", {"messages": _TURN}),
    "chat, streamed": _streamed("/v1/chat/completions", {"messages": _TURN}),
    "chat with tools": _whole("/v1/chat/completions", {"messages": _TURN, "tools": [_TOOL]}),
    "completion": _whole("/v1/completions", {"prompt": "tell me"}),
    "completion, streamed": _streamed("/v1/completions", {"prompt": "tell me"}),
    "embeddings": _whole("/v1/embeddings", {"input": ["a b", "c"]}),
    "rerank": _whole("/v1/rerank", {"query": "a", "documents": ["a b", "c"]}),
    "response": _whole("/v1/responses", {"input": "tell me"}),
    "response, streamed": _streamed("/v1/responses", {"input": "tell me"}),
    "response in the background": _respond_in_background,
    "background response, read": _visit_response,
    "message": _whole("/v1/messages", _MESSAGE),
    "message, streamed": _streamed("/v1/messages", _MESSAGE),
    "count_tokens": _whole("/v1/messages/count_tokens", _MESSAGE),
    "Ollama's chat": _whole("/api/chat", {"model": MODEL, "messages": _TURN, "stream": False}),
    "Ollama's chat, streamed": _streamed("/api/chat", {"model": MODEL, "messages": _TURN}),
    "Ollama's embed": _whole("/api/embed", {"model": MODEL, "input": "a b"}),
    "models": _read("/v1/models"),
    "/run": _submit,
    "/runsync with openai_route": _run_routed,
    "job: status, stream or cancel": _visit_job,
    "file and batch": _start_batch,
    "/metrics": _read("/metrics"),
    "malformed body": _malformed,
}


async def run_load(clients: int = CLIENTS, seconds: float = SECONDS) -> Load:
    """Run the clients against a server of their own, and wait for its jobs."""
    load = Load()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.json"
        answer = {"pieces": _PIECES, "delay_ms": 1}
        script.write_text(
            json.dumps({"answers": [answer], "slots": 8, "capabilities": CAPABILITIES})
        )
        environment = {
            "ENGINE": "scripted",
            "MODEL_PATH": str(script),
            "MODEL_NAME": MODEL,
            "RATE_LIMIT_CHAT": "off",
            "MAX_JOBS": "1000000",
        }
        async with run_emulator(environment, "--port", "0", grace_s=1) as server:
            await server.wait_until_listening()
            await _drive(load, server, clients, seconds)
    return load


async def _drive(load: Load, server: EmulatorProcess, clients: int, seconds: float) -> None:
    async with server.client() as client:
        for name, call in CALLS.items():
            await _make(load, client, name, call)
        load.durations_s.clear()
        load.before_bytes, files = server.resident_bytes, server.state[0]
        ends_at = time.monotonic() + seconds
        tasks = [asyncio.create_task(_client(load, server, ends_at)) for _ in range(clients)]
        tasks.append(asyncio.create_task(_watch(load, server, client, ends_at)))
        await asyncio.gather(*tasks)
        load.lost_jobs = await _wait_for_jobs(load, client)
        text = (await client.get("/metrics")).text
        metrics = _METRIC.findall(text)
        load.ended_jobs = sum(
            int(float(value)) for name, _, value in metrics if name.endswith("jobs_ended_total")
        )
        load.settled_bytes, load.files = server.resident_bytes, (files, server.state[0])
    if "Traceback" in server.stderr:
        load.failures.append("the log has a traceback")


async def _client(load: Load, server: EmulatorProcess, ends_at: float) -> None:
    async with server.client() as client:
        while time.monotonic() < ends_at:
            name = load.chance.choice(list(CALLS))
            await _make(load, client, name, CALLS[name])


async def _make(load: Load, client: httpx2.AsyncClient, name: str, call: Call) -> None:
    started_s = time.monotonic()
    try:
        status = await call(load, client)
    except httpx2.HTTPError as error:
        load.failures.append(f"{name}: {error!r}")
        return
    load.durations_s[name].append(time.monotonic() - started_s)
    load.statuses[status] += 1
    if status >= 500:
        load.failures.append(f"{name}: status {status}")


async def _watch(
    load: Load, server: EmulatorProcess, client: httpx2.AsyncClient, ends_at: float
) -> None:
    """Ask for /health as another client does, and look at the memory."""
    while time.monotonic() < ends_at:
        started_s = time.monotonic()
        response = await client.get("/health")
        load.health_s.append(time.monotonic() - started_s)
        if response.status_code != 200:
            load.failures.append(f"/health: status {response.status_code}")
        load.peak_bytes = max(load.peak_bytes, server.resident_bytes)
        await asyncio.sleep(_POLL_S)


async def _wait_for_jobs(load: Load, client: httpx2.AsyncClient) -> list[str]:
    """Return the jobs that have not ended in time."""
    waiting, give_up_at = list(load.jobs), time.monotonic() + _SETTLE_S
    while waiting and time.monotonic() < give_up_at:
        job = waiting.pop()
        response = await client.get(f"/status/{job}")
        # The result of a /runsync is kept for a minute.
        if response.status_code != 404 and response.json()["status"] not in _FINAL:
            waiting.insert(0, job)
            await asyncio.sleep(_POLL_S / 10)
    return waiting


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    result = asyncio.run(run_load(options.clients, options.seconds))
    sys.stdout.write("\n".join([result.table(), *result.failures[:20]]) + "\n")
