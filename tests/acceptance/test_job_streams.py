"""A job of the default model on a server without settings, streamed as it is generated (R59)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import pytest_asyncio
import runpod

from tests.acceptance.npm_client import run_npm_client
from tests.integration.emulator.processes import EmulatorProcess, run_emulator

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 40
PROMPT = "Count in words: one, two, three, four,"
JOB = {
    "prompt": PROMPT,
    "sampling_params": {"max_tokens": TOKENS, "temperature": 0, "stream": True, "ignore_eos": True},
    "enable_validation": False,
}
# Much longer than on a quiet machine, because other tests run at the same time.
FIRST_CHUNK_LIMIT_S = 2.0
MIN_CHUNKS = 8


class Arrival(NamedTuple):
    """One output of a stream, and the seconds from the submission of the job to its arrival."""

    after_s: float
    output: Any


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(
    model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EmulatorProcess]:
    """A server with default settings (but for the place of its jobs), its model loaded."""
    del model_path
    database = tmp_path_factory.mktemp("streams") / "jobs.sqlite3"
    async with run_emulator({"JOB_DB": str(database)}, "--port", "0") as process:
        await process.wait_until_listening()
        async with process.client() as client:
            warm_up = {"prompt": PROMPT, "sampling_params": {"max_tokens": 4}}
            await client.post("/runsync", json={"input": warm_up})
        yield process


def text_of(output: Any) -> str:
    text: str = output["choices"][0]["text"]
    return text


def check_stream(arrivals: list[Arrival], final: dict[str, Any]) -> None:
    """Check that a job came in separate chunks over its generation, with its whole JSON last."""
    *partial, last = arrivals
    assert len(partial) >= MIN_CHUNKS
    assert partial[0].after_s < FIRST_CHUNK_LIMIT_S
    # Each chunk has a moment of its own, all over the generation.
    moments = sorted({after_s for after_s, _ in partial})
    assert len(moments) >= MIN_CHUNKS
    generation_s = moments[-1] - moments[0]
    assert generation_s > 0.5 * final["timings"]["generate_ms"] / 1000
    assert max(later - earlier for earlier, later in pairwise(moments)) < 0.5 * generation_s
    # The joined chunks are the answer.
    assert "".join(text_of(output) for _, output in partial) == text_of(final)
    assert last.output == final
    assert final["usage"]["output"] == TOKENS


async def send(client: httpx2.AsyncClient, job_input: dict[str, Any]) -> str:
    return str((await client.post("/run", json={"input": job_input})).json()["id"])


async def final_output(client: httpx2.AsyncClient, job_id: str) -> Any:
    job = (await client.get(f"/status-sync/{job_id}?wait=20000")).json()
    assert job["status"] == "COMPLETED", job
    return job["output"]


async def read_json(client: httpx2.AsyncClient, job_id: str, sent_s: float) -> list[Arrival]:
    arrivals: list[Arrival] = []
    while True:
        answer = (await client.get(f"/stream/{job_id}")).json()
        after_s = time.monotonic() - sent_s
        arrivals += [Arrival(after_s, item["output"]) for item in answer["stream"]]
        if answer["status"] not in ("IN_QUEUE", "IN_PROGRESS"):
            return arrivals


async def read_events(client: httpx2.AsyncClient, job_id: str, sent_s: float) -> list[Arrival]:
    headers = {"accept": "text/event-stream"}
    async with client.stream("GET", f"/stream/{job_id}", headers=headers) as response:
        arrivals = [
            Arrival(time.monotonic() - sent_s, json.loads(line[6:]))
            async for line in response.aiter_lines()
            if line.startswith("data: ")
        ]
    end = arrivals.pop().output
    assert (end["status"], "message" in end) == ("COMPLETED", False)
    return [Arrival(after_s, event["output"]) for after_s, event in arrivals]


@pytest.mark.long_except("json")
@pytest.mark.parametrize("read", [read_json, read_events], ids=["json", "events"])
async def test_job_streams_as_it_is_generated_with_default_settings(
    server: EmulatorProcess, read: Any
) -> None:  # R59
    async with server.client() as client:
        sent_s = time.monotonic()
        job_id = await send(client, JOB)
        arrivals = await read(client, job_id, sent_s)
        check_stream(arrivals, await final_output(client, job_id))


async def test_first_json_answer_comes_while_the_job_runs(server: EmulatorProcess) -> None:
    async with server.client() as client:
        job_id = await send(client, JOB)
        answer: dict[str, Any] = {"stream": []}
        while not answer["stream"]:
            answer = (await client.get(f"/stream/{job_id}")).json()
        assert answer["status"] == "IN_PROGRESS"
        await final_output(client, job_id)


async def test_openai_job_streams_its_events_and_keeps_its_output(server: EmulatorProcess) -> None:
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    job_input = {"openai_route": "/v1/completions", "openai_input": {**body, "ignore_eos": True}}
    async with server.client() as client:
        sent_s = time.monotonic()
        job_id = await send(client, job_input)
        arrivals = await read_json(client, job_id, sent_s)
        assert len({after_s for after_s, _ in arrivals}) >= MIN_CHUNKS
        assert arrivals[0].after_s < FIRST_CHUNK_LIMIT_S
        output = await final_output(client, job_id)
        assert "".join(output for _, output in arrivals) == output
        assert output.endswith("data: [DONE]\n\n")


async def test_python_client_streams_every_chunk(
    server: EmulatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runpod, "endpoint_url_base", f"http://127.0.0.1:{server.port}/v2")

    def run() -> tuple[list[Any], Any]:
        endpoint = runpod.Endpoint("default", api_key="any")
        try:
            job = endpoint.run(JOB)
            return list(job.stream()), job.output()
        finally:
            endpoint.rp_client.rp_session.close()

    outputs, final = await asyncio.to_thread(run)
    *partial, last = outputs
    assert len(partial) >= MIN_CHUNKS
    assert "".join(map(text_of, partial)) == text_of(final)
    assert last == final


async def test_npm_client_streams_every_chunk(server: EmulatorProcess) -> None:
    base_url = f"http://127.0.0.1:{server.port}/v2"
    *chunks, status = await run_npm_client(base_url, "given", json.dumps(JOB))
    *partial, last = [event["chunk"]["output"] for event in chunks]
    final = status["status"]["output"]
    assert len(partial) >= MIN_CHUNKS
    assert "".join(map(text_of, partial)) == text_of(final)
    assert last == final


async def test_status_runsync_and_chat_are_the_same_with_and_without_streaming(
    server: EmulatorProcess,
) -> None:
    """One JSON from /status and /runsync, streamed or not; OpenAI's chat the same both ways."""
    unstreamed_job = {**JOB, "sampling_params": {**JOB["sampling_params"], "stream": False}}  # type: ignore[dict-item]
    chat = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": TOKENS,
    }
    async with server.client() as client:
        streamed = await final_output(client, await send(client, JOB))
        unstreamed = await final_output(client, await send(client, unstreamed_job))
        sync = (await client.post("/runsync", json={"input": JOB})).json()["output"]
        assert streamed["streaming"] is sync["streaming"] is True
        assert unstreamed["streaming"] is False
        assert streamed["choices"] == sync["choices"]
        assert "".join(streamed["choices"][0]["deltas"]) == text_of(streamed) == text_of(unstreamed)
        assert streamed.keys() == unstreamed.keys() == sync.keys()

        path = "/v1/chat/completions"
        answer = (await client.post(path, json=chat)).json()["choices"][0]["message"]["content"]
        events = (await client.post(path, json={**chat, "stream": True})).text
        lines = [line[6:] for line in events.split("\n") if line.startswith("data: {")]
        deltas = [
            choice["delta"].get("content") or ""
            for line in lines
            for choice in json.loads(line)["choices"]
        ]
        assert "".join(deltas) == answer
        assert len(deltas) > MIN_CHUNKS
