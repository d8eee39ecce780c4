"""Background responses of a server that is killed again and again while they are generated."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.processes import EmulatorProcess, run_emulator

TOKENS = 150
TEXT = "".join(f" {n}" for n in range(TOKENS))


async def read_events(
    server: EmulatorProcess, path: str, limit: int | None = None
) -> list[dict[str, Any]]:
    """Return the events of a stream, or the first `limit` of them."""
    events: list[dict[str, Any]] = []
    async with (
        server.client() as client,
        client.stream("GET", path, timeout=httpx2.Timeout(30.0)) as response,
    ):
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
            if limit is not None and len(events) >= limit:
                break
    return events


@pytest.mark.long_except("3")
@pytest.mark.parametrize("kills", [3, 20])
async def test_stream_of_a_killed_server_has_each_event_once(
    script: ScriptFactory, tmp_path: Path, kills: int
) -> None:
    generator = random.Random(kills)
    pieces = [{"text": f" {n}", "delay_ms": 3} for n in range(TOKENS)]
    settings = {
        "MODEL_PATH": str(script({"when": "slow", "pieces": pieces}, {"pieces": ["quick"]})),
        "JOB_DB": str(tmp_path / "jobs.sqlite3"),
        "MAX_LOSSES": "1000",
    }
    events: list[dict[str, Any]] = []
    response_id, path, other_ids = "", "", list[str]()
    for _ in range(kills):
        async with run_emulator(settings, "--port", "0") as server:
            await server.wait_until_listening()
            async with server.client() as client:
                if not response_id:
                    body = {"input": "slow", "background": True, "temperature": 1.0}
                    created = (await client.post("/v1/responses", json=body)).json()
                    response_id = created["id"]
                other = {"input": "quick", "background": True}
                other_ids.append((await client.post("/v1/responses", json=other)).json()["id"])
            path = f"/v1/responses/{response_id}?stream=true"
            after = f"&starting_after={events[-1]['sequence_number']}" if events else ""
            events += await read_events(server, path + after, generator.randint(1, 6))
            server.process.kill()
            await server.wait_for_exit()
    async with run_emulator(settings, "--port", "0") as server:
        await server.wait_until_listening()
        last = events[-1]["sequence_number"]
        events += await read_events(server, f"{path}&starting_after={last}")
        async with server.client() as client:
            ended = (await client.get(f"/v1/responses/{response_id}")).json()
            others = [await client.get(f"/v1/responses/{other}") for other in other_ids]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert ended["status"] == "completed", ended["error"]
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == ended["output"][0]["content"][0]["text"] == TEXT
    assert [e["type"] for e in events if e["type"].endswith(("completed", "failed"))] == [
        "response.completed"
    ]
    assert events[-1]["response"]["id"] == ended["id"] == response_id
    # Those that were queued behind it are answered as well.
    assert {other.json()["status"] for other in others} == {"completed"}
