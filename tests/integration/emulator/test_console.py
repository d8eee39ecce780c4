"""The server's routes for the console: jobs with their timestamps, live events, and the forms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from emulator.app import create_app
from emulator.autoscaling.program.interpreter import Interpreter
from emulator.autoscaling.program.worker_program import handler_program
from emulator.middleware.faults.catalogue import FAULT_KINDS, RULE_FAULT_NAMES
from emulator.startup.components import build_components
from handler.input.sampling import JOB_DEFAULTS, SamplingInput
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve, build_settings
from tests.waiting import poll_until

EVENTS = {"accept": "text/event-stream"}
PII = {"redact_pii": True}


async def iterate_events(client: httpx2.AsyncClient, job_id: str) -> AsyncIterator[tuple[str, Any]]:
    """Follow a job as the console does."""
    async with client.stream("GET", f"/console/jobs/{job_id}", headers=EVENTS) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        incomplete = ""
        async for text in response.aiter_text():
            *blocks, incomplete = (incomplete + text).split("\n\n")
            for block in blocks:
                if not block.startswith(":"):
                    name, data = block.split("\n")
                    yield name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def submit_job(client: httpx2.AsyncClient, prompt: str, **fields: Any) -> str:
    job_input = {"prompt": prompt, "sampling_params": {"stream": True}, **fields}
    job = (await client.post("/run", json={"input": job_input})).json()
    return str(job["id"])


async def collect_events(client: httpx2.AsyncClient, job_id: str) -> list[tuple[str, Any]]:
    return [event async for event in iterate_events(client, job_id)]


async def test_job_is_followed_while_it_runs_and_keeps_its_chunks(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["one ", "two ", {"hang_s": 3600}]}))
    async with server.client() as client:
        job_id = await submit_job(client, "x")
        texts: list[str] = []
        states: list[str] = []
        async for name, data in iterate_events(client, job_id):
            if name == "job":
                states.append(data["status"])
            elif name == "deltas":
                assert data["first"] == len(texts)
                texts += data["texts"]
                if texts == ["one ", "two "]:
                    assert states[-1] == "IN_PROGRESS"
                    await client.post(f"/cancel/{job_id}")
        assert (name, texts, states[-1]) == ("end", ["one ", "two "], "CANCELLED")
        moments = [data[f"{name}At"] for name in ("created", "queued", "started", "firstToken")]
        assert moments == sorted(moments)
        # The console reads nothing from the stream that RunPod's clients drain.
        stream = (await client.get(f"/stream/{job_id}")).json()["stream"]
        chunks = [item["output"]["choices"][0]["text"] for item in stream]
        assert "".join(chunks) == "one two "


async def test_ended_job_is_followed_to_its_end_immediately(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["one ", "two"]}))
    async with server.client() as client:
        job_id = await submit_job(client, "x")
        await client.get(f"/status-sync/{job_id}")
        events = await collect_events(client, job_id)
        assert [name for name, _ in events if name != "deltas"] == ["job", "end"]
        assert events[-1][1]["output"]["choices"][0]["deltas"] == ["one ", "two"]
        assert events[-1][1] == (await client.get(f"/console/jobs/{job_id}")).json()


async def test_redacted_text_is_never_sent(serve: Serve, script: ScriptFactory) -> None:
    pieces = ["jo@example.com ", {"text": "done", "delay_ms": 100}]
    server = await serve(script({"pieces": pieces}))
    async with server.client() as client:
        events = await collect_events(client, await submit_job(client, "x", validation=PII))
        assert events[-1][1]["output"]["choices"][0]["text"] == "[email] done"
        assert "example.com" not in str(events)


async def test_output_of_a_remote_worker_is_followed_as_streamed(serve: Serve) -> None:
    server = await serve(local_worker=False)
    async with server.client() as client:
        job_id = (await client.post("/v2/other/run", json={"input": {"a": 1}})).json()["id"]
        following = asyncio.create_task(collect_events(client, job_id))
        job = (await client.get("/v2/other/job-take/w")).json()
        assert job["id"] == job_id
        await client.post(f"/v2/other/job-stream/w/{job_id}", json={"output": {"part": 1}})
        await client.post(f"/v2/other/job-done/w/{job_id}", json={"output": "all"})
        events = await following
        assert ("chunk", {"output": {"part": 1}}) in events
        name, end = events[-1]
        assert (name, end["endpoint"], end["output"], end["input"]) == (
            "end",
            "other",
            "all",
            {"a": 1},
        )


async def test_job_beyond_its_retention_is_404(serve: Serve) -> None:
    server = await serve(local_worker=False, result_retention_s=0.01)
    async with server.client() as client:
        job_id = await submit_job(client, "x")
        following = asyncio.create_task(collect_events(client, job_id))
        await client.post(f"/cancel/{job_id}")
        assert (await following)[-1][0] in ("end", "gone")

        async def is_deleted() -> bool:
            return (await client.get(f"/console/jobs/{job_id}")).status_code == 404

        await poll_until(is_deleted)


async def test_jobs_are_listed_by_endpoint_and_state(serve: Serve) -> None:
    server = await serve(local_worker=False)
    async with server.client() as client:
        first = await submit_job(client, "first words")
        chat = {"messages": [{"role": "user", "content": "a turn " * 100}]}
        second = (await client.post("/run", json={"input": chat})).json()["id"]
        other = (await client.post("/v2/other/run", json={"input": [1, 2]})).json()["id"]
        await client.post(f"/cancel/{first}")
        listed = (await client.get("/console/jobs")).json()
        assert [job["id"] for job in listed["jobs"]] == [second, first]
        assert [job["preview"][:11] for job in listed["jobs"]] == ["a turn a tu", "first words"]
        assert len(listed["jobs"][0]["preview"]) == 120
        assert listed["endpoints"] == ["default", "other"]
        assert (listed["counts"]["CANCELLED"], listed["counts"]["IN_QUEUE"]) == (1, 1)
        query = {"endpoint": "other", "status": "IN_QUEUE"}
        (only,) = (await client.get("/console/jobs", params=query)).json()["jobs"]
        assert (only["id"], only["preview"]) == (other, "[1,2]")
        wrong = await client.get("/console/jobs", params={"status": "LOST"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "status")


async def test_synchronous_jobs_and_calls_to_the_queue_are_listed(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job = (await client.post("/runsync", json={"input": {"prompt": "x"}})).json()
        body = {"prompt": "x", "max_tokens": 1}
        called = await client.post("/v2/default/openai/v1/completions", json=body)
        assert called.status_code == 200
        listed = (await client.get("/console/jobs")).json()["jobs"]
        assert [each["status"] for each in listed] == ["COMPLETED", "COMPLETED"]
        assert listed[1]["id"] == job["id"]
        assert (await client.get("/requests")).json()["requests"] == []


async def test_list_has_at_most_100_jobs_and_filters_before_the_limit(serve: Serve) -> None:
    server = await serve(local_worker=False)
    async with server.client() as client:
        empty = (await client.get("/console/jobs")).json()
        assert (empty["endpoints"], empty["jobs"]) == (["default"], [])
        assert set(empty["workers"]) >= {"idle", "running"}
        ids = [await submit_job(client, "x") for _ in range(102)]
        await client.post(f"/cancel/{ids[0]}")
        newest = ids[:1:-1]
        for query in ({}, {"status": "IN_QUEUE"}):
            jobs = (await client.get("/console/jobs", params=query)).json()["jobs"]
            assert [job["id"] for job in jobs] == newest
        query = {"status": "CANCELLED"}
        (only,) = (await client.get("/console/jobs", params=query)).json()["jobs"]
        assert only["id"] == ids[0]


async def test_description_matches_the_servers_checks(serve: Serve) -> None:
    server = await serve(api_keys="a-key")
    await server.engine.ready()
    async with server.client() as client:
        for path in ("/console/description", "/console/jobs", "/console/jobs/1"):
            assert (await client.get(path)).status_code == 401
        saved = await client.post("/console/jobs/1/test", json={"name": "x"})
        assert saved.status_code == 401
        headers = {"authorization": "Bearer a-key"}
        description = (await client.get("/console/description", headers=headers)).json()
    job = description["forms"]["job"]
    assert job["path"] == "/v2/default/run"
    assert job["parameters"].keys() == SamplingInput.model_fields.keys()
    temperature = job["parameters"]["temperature"]
    assert temperature["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert temperature["default"] == JOB_DEFAULTS.temperature
    assert description["forms"]["chat"]["parameters"]["temperature"]["default"] == 1
    # The scripted engine does not support logit_bias and reports that itself.
    note = "logit_bias is not supported by the scripted engine"
    assert job["parameters"]["logit_bias"]["note"] == note
    assert note in description["warnings"]
    assert description["engine"]["slots"] == server.engine.slots
    assert "a-key" not in json.dumps(description)


@pytest.mark.parametrize("has_engine", [True, False])
@pytest.mark.parametrize("is_on", [True, False])
async def test_description_has_the_faults_only_if_requests_may_ask_for_them(
    is_on: bool, has_engine: bool, serve: Serve
) -> None:
    if has_engine:
        client = (await serve(faults_per_request=is_on)).client()
    else:
        settings = build_settings({"job_db": ":memory:", "faults_per_request": is_on})
        transport = httpx2.ASGITransport(app=create_app(build_components(settings, None, {})))
        client = httpx2.AsyncClient(transport=transport, base_url="http://localhost")
    async with client:
        faults = (await client.get("/console/description")).json()["faults"]
    if not is_on:
        assert faults is None
        return
    names = [name for name in FAULT_KINDS if name not in RULE_FAULT_NAMES]
    assert [fault["name"] for fault in faults] == names
    assert faults[0] == {
        "name": "status",
        "group": "replacement",
        "example": "status=503",
        "meaning": FAULT_KINDS["status"].meaning,
    }


async def test_description_of_a_handlers_server_has_the_example_inputs(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_input.json").write_text('{"input": {"x": 1}}')
    file = tmp_path / "handler.py"
    settings = build_settings({"job_db": ":memory:"})
    program = handler_program(file, Interpreter("/opt/python", "chosen"))
    app = create_app(build_components(settings, None, {"default": program}))
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        description = (await client.get("/console/description")).json()
    first = {"file": "test_input.json", "name": "test_input", "input": {"x": 1}}
    assert description["examples"] == {"inputs": [first], "problems": []}


async def test_no_test_is_saved_without_a_handler_or_for_another_origin(serve: Serve) -> None:
    server = await serve(local_worker=False)
    async with server.client() as client:
        path = f"/console/jobs/{await submit_job(client, 'x')}/test"
        saved = await client.post(path, json={"name": "x"})
        assert saved.status_code == 404
        assert "this server runs no handler" in saved.json()["error"]["message"]
        foreign = {"origin": "https://elsewhere.example"}
        assert (await client.post(path, json={"name": "x"}, headers=foreign)).status_code == 403
