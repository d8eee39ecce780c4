"""A job on a server with default settings, streamed as it is generated (R59)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

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
# Most words come in a chunk of their own, unless the machine is busy.
MIN_CHUNKS = 8
SCRIPT = {"answers": [{"pieces": [f" word{n}" for n in range(TOKENS)], "delay_ms": 25}], "slots": 4}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[EmulatorProcess]:
    """A server with default settings, but for its model and the place of its jobs."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    settings = {
        "JOB_DB": str(folder / "jobs.sqlite3"),
        "MODEL_PATH": str(folder / "script.json"),
        "MODEL_NAME": "tiny",
    }
    async with run_emulator(settings, "--port", "0") as process:
        await process.wait_until_listening()
        async with process.client() as client:
            warm_up = {"prompt": PROMPT, "sampling_params": {"max_tokens": 4}}
            await client.post("/runsync", json={"input": warm_up})
        yield process


def text_of(output: Any) -> str:
    text: str = output["choices"][0]["text"]
    return text


def check_stream(outputs: list[Any], final: dict[str, Any]) -> None:
    """Check that a job came in separate chunks, with its whole JSON last."""
    *partial, last = outputs
    assert len(partial) >= MIN_CHUNKS
    # The joined chunks are the answer.
    assert "".join(map(text_of, partial)) == text_of(final)
    assert last == final
    assert final["usage"]["output"] == TOKENS


async def send(client: httpx2.AsyncClient, job_input: dict[str, Any]) -> str:
    return str((await client.post("/run", json={"input": job_input})).json()["id"])


async def final_output(client: httpx2.AsyncClient, job_id: str) -> Any:
    job = (await client.get(f"/status-sync/{job_id}?wait=20000")).json()
    assert job["status"] == "COMPLETED", job
    return job["output"]


async def is_running(client: httpx2.AsyncClient, job_id: str) -> bool:
    return bool((await client.get(f"/status/{job_id}")).json()["status"] == "IN_PROGRESS")


async def read_json(client: httpx2.AsyncClient, job_id: str) -> list[Any]:
    """Return the outputs of all answers, the first of which comes while the job runs."""
    outputs: list[Any] = []
    while True:
        answer = (await client.get(f"/stream/{job_id}")).json()
        if answer["stream"] and not outputs:
            assert answer["status"] == "IN_PROGRESS"
        outputs += [item["output"] for item in answer["stream"]]
        if answer["status"] not in ("IN_QUEUE", "IN_PROGRESS"):
            return outputs


async def read_events(client: httpx2.AsyncClient, job_id: str) -> list[Any]:
    """Return the outputs of all events, the first of which comes while the job runs."""
    headers = {"accept": "text/event-stream"}
    events: list[Any] = []
    async with client.stream("GET", f"/stream/{job_id}", headers=headers) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                if not events:
                    assert await is_running(client, job_id)
                events.append(json.loads(line[6:]))
    end = events.pop()
    assert (end["status"], "message" in end) == ("COMPLETED", False)
    return [event["output"] for event in events]


@pytest.mark.parametrize("read", [read_json, read_events], ids=["json", "events"])
async def test_job_streams_as_it_is_generated_with_default_settings(
    server: EmulatorProcess, read: Any
) -> None:  # R59
    async with server.client() as client:
        job_id = await send(client, JOB)
        outputs = await read(client, job_id)
        check_stream(outputs, await final_output(client, job_id))


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
        job_id = await send(client, job_input)
        outputs = await read_json(client, job_id)
        assert len(outputs) >= MIN_CHUNKS
        output = await final_output(client, job_id)
        assert "".join(outputs) == output
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
