"""`/metrics` and `/system/status` of a server that has done a little of everything."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from emulator.metrics.definitions import PREFIX
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.job_client import OTHER, submit_job, wait_for_status
from tests.integration.emulator.serving import RawConnection, Server
from tests.waiting import poll_until
from tools.docs.metrics import specs

Samples = dict[tuple[str, ...], float]
ROUTE = "/v1/completions"
TALK = {"when": "talk", "pieces": ["bla "], "repeat": -1, "delay_ms": 2}
STEADY = {"when": "steady", "pieces": ["a", "b", "c"], "delay_ms": 10, "prefill_ms": 30}
BROKEN = {"when": "broken", "pieces": ["a", {"error": "no luck"}]}
DEADLY = {"when": "deadly", "pieces": ["a", {"signal": "SIGKILL"}]}


async def scraped(client: httpx2.AsyncClient, **headers: str) -> Samples:
    """Return what the library reads of a scrape: each value by its name and its labels' values."""
    response = await client.get("/metrics", headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return {
        (sample.name.removeprefix(PREFIX), *map(str, sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


async def until_scraped(client: httpx2.AsyncClient, *key: str) -> Samples:
    async def reached() -> Samples | None:
        found = await scraped(client)
        return found if found[key] == 1 else None

    return await poll_until(reached)


async def left_in_the_middle(server: Server) -> None:
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "talk", "stream": True})
        await wire.read_head()
        await wire.read_chunk()


async def test_what_is_done_is_counted(serve: Serve, script: ScriptFactory) -> None:
    path = script(TALK, STEADY, BROKEN, {}, slots=4)
    server = await serve(path, model_name="tiny")
    async with server.client() as client:
        plain = {"prompt": "one two three"}
        assert (await client.post(ROUTE, json=plain | {"stop": ["three"]})).status_code == 200
        assert (await client.post(ROUTE, json=plain | {"max_tokens": 2})).status_code == 200
        assert (await client.post("/v1/chat/completions", json={})).status_code == 400
        assert (await client.post(ROUTE, json={"prompt": "broken"})).status_code == 500
        job = {"input": {"prompt": "steady", "validation": {"json_schema": {"type": "object"}}}}
        assert (await client.post("/runsync", json=job)).json()["status"] == "COMPLETED"
        waits = await submit_job(client)
        taken_back = await submit_job(client)
        await client.post(f"{OTHER}/cancel/{taken_back}")
        await left_in_the_middle(server)
        await server.wait_until_idle()
        found = await scraped(client)
        status = (await client.get("/system/status")).json()["metrics"]
        assert (await client.get(f"{OTHER}/status/{waits}")).json()["status"] == "IN_QUEUE"
    assert found["http_requests_total", "completions", "200"] == 3
    assert found["http_requests_total", "completions", "500"] == 1
    assert found["http_requests_total", "chat", "400"] == 1
    assert found["http_request_duration_seconds_count", "runsync"] == 1
    assert found["generations_total", "interactive", "stop"] == 1
    assert found["generations_total", "interactive", "length"] == 1
    assert found["generations_total", "interactive", "failed"] == 1
    assert found["generations_total", "interactive", "aborted"] == 1
    assert found["generations_total", "job", "stop"] == 1
    assert found["aborts_total", "cancelled"] == 1
    assert found["failures_total", "backend"] == 1
    assert found["stop_hits_total", "string"] == 1
    # R4: as the answers' usage had it.
    assert found["prompt_tokens_total",] == 3 + 3 + 1
    assert found["completion_tokens_total",] >= 3 + 2 + 3 + 1
    assert found["time_to_first_token_seconds_count",] == 5
    assert found["time_to_first_token_seconds_sum",] >= 0.03
    assert found["inter_token_latency_seconds_count",] >= 2 + 1 + 2
    assert found["inter_token_latency_seconds_sum",] >= 0.02
    assert found["slot_wait_seconds_count", "interactive"] == 4
    assert found["validation_verdicts_total", "false"] == 1
    assert found["validation_issues_total", "schema_not_json"] == 1
    assert found["jobs", "IN_QUEUE"] == 1
    assert found["jobs", "CANCELLED"] == 1
    assert found["jobs", "COMPLETED"] == 1
    assert found["jobs_ended_total", "COMPLETED"] == 1
    assert found["jobs_ended_total", "CANCELLED"] == 1
    assert found["job_queue_delay_seconds_count",] == 1
    assert found["job_execution_seconds_sum",] >= 0.05
    assert found["engine_state", "ready"] == 1
    assert (found["engine_slots",], found["requests_waiting",]) == (4, 0)
    assert found["info", "scripted", "tiny", "thread"] == 1
    assert found["workers", "idle"] == 4
    assert found["process_resident_memory_bytes",] > 1e6
    # One source, two views.
    # The NPU has metrics on the rkllm engine only.
    names = {spec.name for spec in specs() if not spec.name.startswith(f"{PREFIX}npu_")}
    assert status.keys() == names
    assert status[f"{PREFIX}completion_tokens_total"] == found["completion_tokens_total",]
    assert status[f"{PREFIX}generations_total"]["job"]["stop"] == 1
    spread = status[f"{PREFIX}job_execution_seconds"]
    assert spread["sum"] == pytest.approx(found["job_execution_seconds_sum",], abs=1e-6)


async def test_paths_and_statuses_of_strangers_make_no_new_series(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        await client.get("/nothing")
        before = await scraped(client)
        for number in range(10):
            await client.get(f"/made-up-{number}")
            await client.get(f"/v2/endpoint-{number}/status/job-{number}")
            await client.post(f"/v2/endpoint-{number}/odd-{number}", json={})
        after = await scraped(client)
    new = {key[:2] for key in after.keys() - before.keys()}
    assert {key[1] for key in new} <= {"status", "metrics", "other"}
    assert after["http_requests_total", "other", "404"] == 21


async def test_a_scrape_needs_a_key_where_there_are_keys_unless_it_is_opened(serve: Serve) -> None:
    # R52; and two servers of one process share no number.
    shut, opened = await serve(api_keys="one"), await serve(api_keys="one", metrics_open=True)
    key = {"authorization": "Bearer one"}
    async with shut.client() as first, opened.client() as second:
        await first.post(ROUTE, json={"prompt": "x"}, headers=key)
        assert (await first.get("/metrics")).status_code == 401
        found = await scraped(first, **key)
        assert found["generations_total", "interactive", "stop"] == 1
        assert (await scraped(second))["generations_total", "interactive", "stop"] == 0
        for path in ("/metrics/", "/system/status", "/requests"):
            assert (await second.get(path)).status_code == 401


async def test_restarts_of_the_engine_are_counted(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script(DEADLY, TALK, {}, slots=4), engine_isolation="process")
    async with server.client() as client, asyncio.TaskGroup() as group:
        talking = group.create_task(client.post(ROUTE, json={"prompt": "talk"}))
        await until_scraped(client, "slots_in_use")
        assert (await client.post(ROUTE, json={"prompt": "deadly"})).status_code == 500
        assert (await talking).status_code == 500
        found = await until_scraped(client, "engine_restarts_total")
        assert found["failures_total", "crashed"] == 2


async def test_lines_of_a_batch_are_counted(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script(BROKEN, {}), batch_tries=1)
    lines = [call("a"), call("b"), call("c", prompt="broken")]
    async with server.client() as client:
        files = {"file": ("in.jsonl", "\n".join(map(json.dumps, lines)).encode())}
        upload = await client.post("/v1/files", files=files, data={"purpose": "batch"})
        body = {"input_file_id": upload.json()["id"], "endpoint": ROUTE, "completion_window": "24h"}
        assert (await client.post("/v1/batches", json=body)).status_code == 200
        found = await until_scraped(client, "batches", "completed")
    assert found["batch_lines_total", "completed"] == 2
    assert found["batch_lines_total", "failed"] == 1
    assert found["generations_total", "batch", "stop"] == 2


async def test_jobs_that_an_earlier_server_ended_are_not_counted_again(
    serve: Serve, tmp_path: Any
) -> None:
    # Its webhook answers nothing, so it is told of again at the next start.
    told = {"webhook": "http://127.0.0.1:9/"}
    kept: dict[str, Any] = {"job_db": str(tmp_path / "jobs.sqlite3"), "webhook_pause_s": 60}
    server = await serve(**kept)
    async with server.client() as client:
        job_id = await submit_job(client, "", **told)
        await wait_for_status(client, job_id, "COMPLETED", "")
        assert (await scraped(client))["jobs_ended_total", "COMPLETED"] == 1
    await server.uvicorn.lifespan.shutdown()
    again = await serve(**kept)
    async with again.client() as client:
        found = await scraped(client)
    assert (found["jobs", "COMPLETED"], found["jobs_ended_total", "COMPLETED"]) == (1, 0)
