"""The local worker's jobs over HTTP: cancel, timeouts, streams and the queue."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from engine.hooks import RequestEnded, RequestStarted
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server

HANG = {"hang_s": 3600}
ENDLESS = {"pieces": ["bla "], "repeat": -1, "delay_ms": 2}


async def submit_job(client: httpx2.AsyncClient, prompt: str = "x", **fields: Any) -> str:
    body = {"input": {"prompt": prompt, "stream": True}, **fields}
    return str((await client.post("/run", json=body)).json()["id"])


async def wait_for_end(client: httpx2.AsyncClient, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = (await client.get(f"/status-sync/{job_id}?wait=20000")).json()
    return job


async def count_workers(client: httpx2.AsyncClient) -> tuple[int, int]:
    counts = (await client.get("/v2/default/health")).json()["workers"]
    return counts["idle"], counts["running"]


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_cancel_frees_the_slot_within_a_tokens_time(
    serve: Serve, script: ScriptFactory, mode: str
) -> None:  # R31
    path = script(ENDLESS, slots=1, context_length=10**6)
    server = await serve(path, stream_mode=mode)
    async with server.client() as client:
        for count in range(1, 4):
            job_id = await submit_job(client)
            await server.events.wait(RequestStarted, count)
            assert await count_workers(client) == (0, 1)
            response = await client.post(f"/cancel/{job_id}")
            assert response.json() == {"id": job_id, "status": "CANCELLED"}
            end = (await server.events.wait(RequestEnded, count))[-1]
            assert end.aborted
            await wait_until_idle(server, client)
            assert (await wait_for_end(client, job_id))["status"] == "CANCELLED"


async def wait_until_idle(server: Server, client: httpx2.AsyncClient) -> None:
    await server.wait_until(lambda: server.engine.running == 0)
    async with asyncio.timeout(40):
        while (await count_workers(client))[1]:
            pass


async def test_execution_timeout_excludes_the_time_in_the_queue(
    serve: Serve, script: ScriptFactory
) -> None:
    hang = {"when": "hang", "pieces": ["a", HANG]}
    server = await serve(
        script(hang, {"pieces": ["ok"]}, slots=1), min_execution_timeout_ms=1, job_db=":memory:"
    )
    async with server.client() as client:
        first = await submit_job(client, "hang", policy={"executionTimeout": 2000})
        # The job waits in the queue for longer than its execution timeout.
        second = await submit_job(client, "quick", policy={"executionTimeout": 1000})
        timed_out = await wait_for_end(client, first)
        assert timed_out["status"] == "TIMED_OUT"
        assert "executionTimeout" in timed_out["error"]
        completed = await wait_for_end(client, second)
        assert completed["status"] == "COMPLETED"
        assert completed["delayTime"] > 1000


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_job_is_streamed_while_it_runs(
    serve: Serve, script: ScriptFactory, mode: str
) -> None:  # R59
    pieces = ["one", {"text": " two", "delay_ms": 100}, {"text": " three", "delay_ms": 150}]
    server = await serve(script({"pieces": pieces}), stream_mode=mode)
    async with server.client() as client:
        job_id = await submit_job(client)
        deltas: list[tuple[str, str]] = []
        while True:
            response_body = (await client.get(f"/stream/{job_id}")).json()
            texts = [item["output"]["choices"][0]["text"] for item in response_body["stream"]]
            deltas += [(response_body["status"], text) for text in texts]
            if response_body["status"] == "COMPLETED":
                break
        assert deltas[0] == ("IN_PROGRESS", "one")
        assert "".join(text for _, text in deltas[:-1]) == deltas[-1][1] == "one two three"
        output = (await wait_for_end(client, job_id))["output"]
        if mode == "generator":
            assert [each["choices"][0]["text"] for each in output] == [text for _, text in deltas]
        else:
            assert output["choices"][0]["text"] == "one two three"


async def test_stream_of_a_job_without_streaming_explains_how_to_enable_it(
    serve: Serve, script: ScriptFactory
) -> None:  # R59
    server = await serve(script({"pieces": ["one ", "two"]}))
    async with server.client() as client:
        job_id = (await client.post("/run", json={"input": {"prompt": "x"}})).json()["id"]
        await wait_for_end(client, job_id)
        response_body = (await client.get(f"/stream/{job_id}")).json()
        assert (response_body["status"], response_body["stream"]) == ("COMPLETED", [])
        assert response_body["message"].startswith("the job did not ask to stream")
        events = await client.get(f"/stream/{job_id}", headers={"accept": "text/event-stream"})
        assert response_body["message"] in events.text


async def test_retried_job_streams_from_a_restart_event(
    serve: Serve, script: ScriptFactory
) -> None:
    pieces = ["one ", {"text": "two", "delay_ms": 40}, {"error": "out of memory"}]
    server = await serve(script({"pieces": pieces}))
    async with server.client() as client:
        job_id = await submit_job(client)
        first = await wait_for_end(client, job_id)
        assert (first["status"], first["error"]) == ("FAILED", "out of memory")
        headers = {"accept": "text/event-stream"}
        async with client.stream("GET", f"/stream/{job_id}", headers=headers) as response:
            events = (await response.aread()).decode()
        assert "the job failed after 2 chunks: out of memory" in events
        await client.post(f"/retry/{job_id}")
        await wait_for_end(client, job_id)
        after = {**headers, "last-event-id": "1.2"}
        events = (await client.get(f"/stream/{job_id}", headers=after)).text
        assert events.index("event: restart") < events.index("id: 2.1") < events.index("id: 2.2")


async def test_generator_mode_merges_chunks_within_the_stream_interval(
    serve: Serve, script: ScriptFactory
) -> None:
    pieces = [{"text": f"{number} ", "delay_ms": 5} for number in range(20)]
    chunk_counts = {}
    for interval_ms in (0, 60_000):
        server = await serve(
            script({"pieces": pieces}), stream_mode="generator", stream_interval_ms=interval_ms
        )
        async with server.client() as client:
            job_id = await submit_job(client)
            if interval_ms:
                # The first chunk is sent immediately, the next one only after a minute.
                await server.events.wait(RequestEnded)
                stream_body = (await client.get(f"/stream/{job_id}")).json()
                chunk_counts[interval_ms] = len(stream_body["stream"])
            else:
                chunk_counts[interval_ms] = len((await wait_for_end(client, job_id))["output"])
    assert chunk_counts[0] > 3
    assert chunk_counts[60_000] == 1


async def test_interactive_requests_start_before_queued_jobs(
    serve: Serve, script: ScriptFactory
) -> None:
    slow = {"when": "slow", "pieces": ["a", {"text": "b", "delay_ms": 300}]}
    server = await serve(script(slow, {"pieces": ["ok"]}, slots=1))
    async with server.client() as client:
        jobs = [await submit_job(client, prompt) for prompt in ("slow", "second", "third")]
        await server.events.wait(RequestStarted)
        chat = await client.post("/v1/completions", json={"prompt": "now"})
        assert chat.status_code == 200
        for job_id in jobs:
            assert (await wait_for_end(client, job_id))["status"] == "COMPLETED"
        started = [event.request_id for event in server.events.of(RequestStarted)]
        assert [each in jobs for each in started] == [True, False, True, True]


async def test_burst_of_jobs_and_requests_is_answered_completely(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["ok", {"text": "!", "delay_ms": 1}]}, slots=3))
    async with server.client() as client:
        body = {"input": {"prompt": "x"}}
        responses = await asyncio.gather(
            *(client.post("/runsync", json=body) for _ in range(60)),
            *(client.post("/v1/completions", json={"prompt": "x"}) for _ in range(30)),
        )
        assert [response_body.status_code for response_body in responses] == [200] * 90
        outputs = [response_body.json()["output"] for response_body in responses[:60]]
        assert {each["choices"][0]["text"] for each in outputs} == {"ok!"}
        await wait_until_idle(server, client)
        assert server.engine.waiting == 0


async def test_output_limits_apply_to_the_local_worker(serve: Serve, script: ScriptFactory) -> None:
    long = {"when": "long", "pieces": ["x" * 10_000], "repeat": 600}
    path = script(long, {"pieces": ["x" * 1_000], "repeat": 3}, context_length=10**6)
    options = {"sampling_params": {"max_tokens": 2_000}}
    limits = {"max_run_mb": 0.004, "max_runsync_mb": 0.02, "max_chunk_mb": 0.002}
    server = await serve(path, **limits)
    async with server.client() as client:
        job = await wait_for_end(client, await submit_job(client))
        assert job["status"] == "FAILED"
        assert "this server takes 0.004 MB for it" in job["error"]
        body = {"input": {"prompt": "x", "stream": True}}
        assert (await client.post("/runsync", json=body)).json()["status"] == "COMPLETED"
    server = await serve(path, stream_mode="generator", **limits | {"max_run_mb": 1})
    async with server.client() as client:
        job_id = await submit_job(client)
        assert (await wait_for_end(client, job_id))["error"].startswith("one output is")
    server = await serve(path, max_run_mb=40)
    async with server.client() as client:
        body = {"input": {"prompt": "long", **options}}
        job = await wait_for_end(client, (await client.post("/run", json=body)).json()["id"])
        # The output holds the text twice: 12 MB.
        assert job["status"] == "COMPLETED", job
        assert len(job["output"]["choices"][0]["text"]) == 6_000_000


@pytest.mark.long_except("aggregate")
@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_job_timeout_is_its_policy_when_no_request_timeout_is_set(
    serve: Serve, script: ScriptFactory, mode: str
) -> None:
    late = {"when": "late", "pieces": ["a", {"text": "b", "delay_ms": 600}]}
    path = script(late, {"pieces": ["a", HANG]}, slots=4)
    server = await serve(path, stream_mode=mode, min_execution_timeout_ms=100)
    # The default of 600 s is too long for a test.
    server.engine._timeouts = replace(server.engine._timeouts, request_timeout_s=0.2)
    async with server.client() as client:
        late_job = await wait_for_end(client, await submit_job(client, "late"))
        assert late_job["status"] == "COMPLETED"
        for stream in (False, True):
            body = {"prompt": "late", "stream": stream}
            response_body = await client.post("/v2/default/openai/v1/completions", json=body)
            assert (response_body.status_code, "took longer" in response_body.text) == (200, False)
        job = await wait_for_end(client, await submit_job(client, policy={"executionTimeout": 500}))
        assert job["status"] == "TIMED_OUT"
