"""What the console asks of the server: jobs with their moments, one of them live, and the forms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from handler.input.sampling import JOB_DEFAULTS, SamplingInput
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.waiting import poll_until

EVENTS = {"accept": "text/event-stream"}
PII = {"redact_pii": True}


async def events(client: httpx2.AsyncClient, job_id: str) -> AsyncIterator[tuple[str, Any]]:
    """Follow a job as the console does."""
    async with client.stream("GET", f"/console/jobs/{job_id}", headers=EVENTS) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        held = ""
        async for part in response.aiter_text():
            *blocks, held = (held + part).split("\n\n")
            for block in blocks:
                if not block.startswith(":"):
                    name, data = block.split("\n")
                    yield name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def run(client: httpx2.AsyncClient, prompt: str, **rest: Any) -> str:
    given = {"prompt": prompt, "sampling_params": {"stream": True}, **rest}
    job = (await client.post("/run", json={"input": given})).json()
    return str(job["id"])


async def followed(client: httpx2.AsyncClient, job_id: str) -> list[tuple[str, Any]]:
    return [event async for event in events(client, job_id)]


async def test_job_is_followed_while_it_runs_and_keeps_its_chunks(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["one ", "two ", {"hang_s": 3600}]}))
    async with server.client() as client:
        job_id = await run(client, "x")
        said: list[str] = []
        states: list[str] = []
        async for name, data in events(client, job_id):
            if name == "job":
                states.append(data["status"])
            elif name == "deltas":
                assert data["first"] == len(said)
                said += data["texts"]
                if said == ["one ", "two "]:
                    assert states[-1] == "IN_PROGRESS"
                    await client.post(f"/cancel/{job_id}")
        assert (name, said, states[-1]) == ("end", ["one ", "two "], "CANCELLED")
        moments = [data[f"{name}At"] for name in ("created", "queued", "started", "firstToken")]
        assert moments == sorted(moments)
        # The console reads nothing from the stream that RunPod's clients drain.
        stream = (await client.get(f"/stream/{job_id}")).json()["stream"]
        chunks = [item["output"]["choices"][0]["text"] for item in stream]
        assert "".join(chunks) == "one two "


async def test_job_that_has_ended_is_told_at_once(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["one ", "two"]}))
    async with server.client() as client:
        job_id = await run(client, "x")
        await client.get(f"/status-sync/{job_id}")
        told = await followed(client, job_id)
        assert [name for name, _ in told if name != "deltas"] == ["job", "end"]
        assert told[-1][1]["output"]["choices"][0]["deltas"] == ["one ", "two"]
        assert told[-1][1] == (await client.get(f"/console/jobs/{job_id}")).json()


async def test_text_that_is_redacted_is_not_told_before(
    serve: Serve, script: ScriptFactory
) -> None:
    pieces = ["jo@example.com ", {"text": "done", "delay_ms": 100}]
    server = await serve(script({"pieces": pieces}))
    async with server.client() as client:
        told = await followed(client, await run(client, "x", validation=PII))
        assert told[-1][1]["output"]["choices"][0]["text"] == "[email] done"
        assert "example.com" not in str(told)


async def test_output_of_another_worker_is_told_as_it_was_streamed(serve: Serve) -> None:
    server = await serve(local_worker=False)
    async with server.client() as client:
        job_id = (await client.post("/v2/other/run", json={"input": {"a": 1}})).json()["id"]
        following = asyncio.create_task(followed(client, job_id))
        taken = (await client.get("/v2/other/job-take/w")).json()
        assert taken["id"] == job_id
        await client.post(f"/v2/other/job-stream/w/{job_id}", json={"output": {"part": 1}})
        await client.post(f"/v2/other/job-done/w/{job_id}", json={"output": "all"})
        told = await following
        assert ("chunk", {"output": {"part": 1}}) in told
        name, end = told[-1]
        assert (name, end["endpoint"], end["output"], end["input"]) == (
            "end",
            "other",
            "all",
            {"a": 1},
        )


async def test_job_that_is_kept_no_more_is_gone(serve: Serve) -> None:
    server = await serve(local_worker=False, result_retention_s=0.01)
    async with server.client() as client:
        job_id = await run(client, "x")
        following = asyncio.create_task(followed(client, job_id))
        await client.post(f"/cancel/{job_id}")
        assert (await following)[-1][0] in ("end", "gone")

        async def gone() -> bool:
            return (await client.get(f"/console/jobs/{job_id}")).status_code == 404

        await poll_until(gone)


async def test_jobs_are_listed_by_endpoint_and_state(serve: Serve) -> None:
    server = await serve(local_worker=False)
    async with server.client() as client:
        first = await run(client, "first words")
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
        asked = {"endpoint": "other", "status": "IN_QUEUE"}
        (only,) = (await client.get("/console/jobs", params=asked)).json()["jobs"]
        assert (only["id"], only["preview"]) == (other, "[1,2]")
        wrong = await client.get("/console/jobs", params={"status": "LOST"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "status")


async def test_list_is_of_a_hundred_and_finds_a_state_behind_them(serve: Serve) -> None:
    server = await serve(local_worker=False)
    async with server.client() as client:
        nothing = (await client.get("/console/jobs")).json()
        assert (nothing["endpoints"], nothing["jobs"]) == (["default"], [])
        assert set(nothing["workers"]) >= {"idle", "running"}
        ids = [await run(client, "x") for _ in range(102)]
        await client.post(f"/cancel/{ids[0]}")
        newest = ids[:1:-1]
        for asked in ({}, {"status": "IN_QUEUE"}):
            found = (await client.get("/console/jobs", params=asked)).json()["jobs"]
            assert [job["id"] for job in found] == newest
        asked = {"status": "CANCELLED"}
        (only,) = (await client.get("/console/jobs", params=asked)).json()["jobs"]
        assert only["id"] == ids[0]


async def test_description_is_what_the_server_checks(serve: Serve) -> None:
    server = await serve(api_keys="a-key")
    await server.engine.ready()
    async with server.client() as client:
        for path in ("/console/description", "/console/jobs", "/console/jobs/1"):
            assert (await client.get(path)).status_code == 401
        saved = await client.post("/console/jobs/1/test", json={"name": "x"})
        assert saved.status_code == 401
        headers = {"authorization": "Bearer a-key"}
        found = (await client.get("/console/description", headers=headers)).json()
    job = found["forms"]["job"]
    assert job["path"] == "/v2/default/run"
    assert job["parameters"].keys() == SamplingInput.model_fields.keys()
    temperature = job["parameters"]["temperature"]
    assert temperature["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert temperature["default"] == JOB_DEFAULTS.temperature
    assert found["forms"]["chat"]["parameters"]["temperature"]["default"] == 1
    # The scripted engine has no bias, and says so itself.
    note = "logit_bias is not supported by the scripted engine"
    assert job["parameters"]["logit_bias"]["note"] == note
    assert note in found["warnings"]
    assert found["engine"]["slots"] == server.engine.slots
    assert "a-key" not in json.dumps(found)


async def test_no_test_is_saved_without_a_handler_or_for_another_origin(serve: Serve) -> None:
    server = await serve(local_worker=False)
    async with server.client() as client:
        path = f"/console/jobs/{await run(client, 'x')}/test"
        saved = await client.post(path, json={"name": "x"})
        assert saved.status_code == 404
        assert "this server runs no handler" in saved.json()["error"]["message"]
        foreign = {"origin": "https://elsewhere.example"}
        assert (await client.post(path, json={"name": "x"}, headers=foreign)).status_code == 403
