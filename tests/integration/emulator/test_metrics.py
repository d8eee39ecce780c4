"""`/metrics` and `/system/status` of a server that has run requests, jobs and batches."""

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
ENDLESS = {"when": "talk", "pieces": ["bla "], "repeat": -1, "delay_ms": 2}
SLOW_PREFILL = {"when": "steady", "pieces": ["a", "b", "c"], "delay_ms": 10, "prefill_ms": 30}
BROKEN = {"when": "broken", "pieces": ["a", {"error": "no luck"}]}
DEADLY = {"when": "deadly", "pieces": ["a", {"signal": "SIGKILL"}]}


async def scrape(client: httpx2.AsyncClient, **headers: str) -> Samples:
    """Scrape `/metrics`; return each value by its metric's name and the values of its labels."""
    response = await client.get("/metrics", headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return {
        (sample.name.removeprefix(PREFIX), *map(str, sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


async def wait_for_sample(client: httpx2.AsyncClient, *key: str) -> Samples:
    async def reached() -> Samples | None:
        samples = await scrape(client)
        return samples if samples[key] == 1 else None

    return await poll_until(reached)


async def disconnect_in_mid_stream(server: Server) -> None:
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "talk", "stream": True})
        await wire.read_head()
        await wire.read_chunk()


async def test_requests_jobs_and_tokens_are_counted(serve: Serve, script: ScriptFactory) -> None:
    path = script(ENDLESS, SLOW_PREFILL, BROKEN, {}, slots=4)
    server = await serve(path, model_name="tiny")
    async with server.client() as client:
        plain = {"prompt": "one two three"}
        assert (await client.post(ROUTE, json=plain | {"stop": ["three"]})).status_code == 200
        assert (await client.post(ROUTE, json=plain | {"max_tokens": 2})).status_code == 200
        assert (await client.post("/v1/chat/completions", json={})).status_code == 400
        assert (await client.post(ROUTE, json={"prompt": "broken"})).status_code == 500
        job = {"input": {"prompt": "steady", "validation": {"json_schema": {"type": "object"}}}}
        assert (await client.post("/runsync", json=job)).json()["status"] == "COMPLETED"
        waiting_job = await submit_job(client)
        cancelled_job = await submit_job(client)
        await client.post(f"{OTHER}/cancel/{cancelled_job}")
        await disconnect_in_mid_stream(server)
        await server.wait_until_idle()
        samples = await scrape(client)
        status = (await client.get("/system/status")).json()["metrics"]
        assert (await client.get(f"{OTHER}/status/{waiting_job}")).json()["status"] == "IN_QUEUE"
    assert samples["http_requests_total", "completions", "200"] == 3
    assert samples["http_requests_total", "completions", "500"] == 1
    assert samples["http_requests_total", "chat", "400"] == 1
    assert samples["http_request_duration_seconds_count", "runsync"] == 1
    assert samples["generations_total", "interactive", "stop"] == 1
    assert samples["generations_total", "interactive", "length"] == 1
    assert samples["generations_total", "interactive", "failed"] == 1
    assert samples["generations_total", "interactive", "aborted"] == 1
    assert samples["generations_total", "job", "stop"] == 1
    assert samples["aborts_total", "cancelled"] == 1
    assert samples["failures_total", "backend"] == 1
    assert samples["stop_hits_total", "string"] == 1
    # R4: the same counts as in the answers' usage.
    assert samples["prompt_tokens_total",] == 3 + 3 + 1
    assert samples["completion_tokens_total",] >= 3 + 2 + 3 + 1
    assert samples["time_to_first_token_seconds_count",] == 5
    assert samples["time_to_first_token_seconds_sum",] >= 0.03
    assert samples["inter_token_latency_seconds_count",] >= 2 + 1 + 2
    assert samples["inter_token_latency_seconds_sum",] >= 0.02
    assert samples["slot_wait_seconds_count", "interactive"] == 4
    assert samples["validation_verdicts_total", "false"] == 1
    assert samples["validation_issues_total", "schema_not_json"] == 1
    assert samples["jobs", "IN_QUEUE"] == 1
    assert samples["jobs", "CANCELLED"] == 1
    assert samples["jobs", "COMPLETED"] == 1
    assert samples["jobs_ended_total", "COMPLETED"] == 1
    assert samples["jobs_ended_total", "CANCELLED"] == 1
    assert samples["job_queue_delay_seconds_count",] == 1
    assert samples["job_execution_seconds_sum",] >= 0.05
    assert samples["engine_state", "ready"] == 1
    assert (samples["engine_slots",], samples["requests_waiting",]) == (4, 0)
    assert samples["info", "scripted", "tiny", "thread"] == 1
    assert samples["workers", "idle"] == 4
    assert samples["process_resident_memory_bytes",] > 1e6
    # Both routes show the same metrics.
    # The NPU has metrics on the rkllm engine only.
    names = {spec.name for spec in specs() if not spec.name.startswith(f"{PREFIX}npu_")}
    assert status.keys() == names
    assert status[f"{PREFIX}completion_tokens_total"] == samples["completion_tokens_total",]
    assert status[f"{PREFIX}generations_total"]["job"]["stop"] == 1
    histogram = status[f"{PREFIX}job_execution_seconds"]
    assert histogram["sum"] == pytest.approx(samples["job_execution_seconds_sum",], abs=1e-6)


async def test_unknown_paths_create_no_new_series(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        await client.get("/nothing")
        before = await scrape(client)
        for number in range(10):
            await client.get(f"/made-up-{number}")
            await client.get(f"/v2/endpoint-{number}/status/job-{number}")
            await client.post(f"/v2/endpoint-{number}/odd-{number}", json={})
        after = await scrape(client)
    new = {key[:2] for key in after.keys() - before.keys()}
    assert {key[1] for key in new} <= {"status", "metrics", "other"}
    assert after["http_requests_total", "other", "404"] == 21


async def test_metrics_need_a_key_unless_metrics_open_is_set(serve: Serve) -> None:
    # R52. Two servers in one process share no counter.
    protected, public = await serve(api_keys="one"), await serve(api_keys="one", metrics_open=True)
    key = {"authorization": "Bearer one"}
    async with protected.client() as first, public.client() as second:
        await first.post(ROUTE, json={"prompt": "x"}, headers=key)
        assert (await first.get("/metrics")).status_code == 401
        samples = await scrape(first, **key)
        assert samples["generations_total", "interactive", "stop"] == 1
        assert (await scrape(second))["generations_total", "interactive", "stop"] == 0
        for path in ("/metrics/", "/system/status", "/requests"):
            assert (await second.get(path)).status_code == 401


async def test_restarts_of_the_engine_are_counted(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script(DEADLY, ENDLESS, {}, slots=4), engine_isolation="process")
    async with server.client() as client, asyncio.TaskGroup() as group:
        talking = group.create_task(client.post(ROUTE, json={"prompt": "talk"}))
        await wait_for_sample(client, "slots_in_use")
        assert (await client.post(ROUTE, json={"prompt": "deadly"})).status_code == 500
        assert (await talking).status_code == 500
        samples = await wait_for_sample(client, "engine_restarts_total")
        assert samples["failures_total", "crashed"] == 2


async def test_lines_of_a_batch_are_counted(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script(BROKEN, {}), batch_tries=1)
    lines = [call("a"), call("b"), call("c", prompt="broken")]
    async with server.client() as client:
        files = {"file": ("in.jsonl", "\n".join(map(json.dumps, lines)).encode())}
        upload = await client.post("/v1/files", files=files, data={"purpose": "batch"})
        body = {"input_file_id": upload.json()["id"], "endpoint": ROUTE, "completion_window": "24h"}
        assert (await client.post("/v1/batches", json=body)).status_code == 200
        samples = await wait_for_sample(client, "batches", "completed")
    assert samples["batch_lines_total", "completed"] == 2
    assert samples["batch_lines_total", "failed"] == 1
    assert samples["generations_total", "batch", "stop"] == 2


async def test_jobs_that_ended_before_a_restart_are_not_counted_by_the_new_server(
    serve: Serve, tmp_path: Any
) -> None:
    # The webhook fails, so the next server sends it again after its start.
    webhook = {"webhook": "http://127.0.0.1:9/"}
    settings: dict[str, Any] = {"job_db": str(tmp_path / "jobs.sqlite3"), "webhook_pause_s": 60}
    server = await serve(**settings)
    async with server.client() as client:
        job_id = await submit_job(client, "", **webhook)
        await wait_for_status(client, job_id, "COMPLETED", "")
        assert (await scrape(client))["jobs_ended_total", "COMPLETED"] == 1
    await server.uvicorn.lifespan.shutdown()
    restarted = await serve(**settings)
    async with restarted.client() as client:
        samples = await scrape(client)
    assert (samples["jobs", "COMPLETED"], samples["jobs_ended_total", "COMPLETED"]) == (1, 0)
