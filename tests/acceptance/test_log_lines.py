"""No log of any process contains prompts, answers or keys; every line has its ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2

from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call
from tests.integration.emulator.job_client import submit_job, wait_for_status
from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.integration.emulator.serving import RawConnection
from tests.unit.emulator.receiver import receiving
from tests.waiting import poll_until, wait_until

# Neither may appear in the log.
MARK, KEY = "xyzzy-prompt", "plugh-key"
HEADERS = {"authorization": f"Bearer {KEY}"}
ROUTE = "/v1/completions"
BROKEN = {"when": "broken", "pieces": [f"{MARK} ", {"error": "no luck"}]}
DEADLY = {"when": "deadly", "pieces": [f"{MARK} ", {"signal": "SIGKILL"}]}
HANG = {"when": "hang", "pieces": [f"{MARK} ", {"hang_s": 3600}]}
PLAIN: dict[str, Any] = {"prompt": f"{MARK} says"}


def lines(server: EmulatorProcess) -> list[dict[str, Any]]:
    """Return what the server has logged; each line must be one JSON object."""
    return [json.loads(line) for line in server.lines]


async def job(client: httpx2.AsyncClient, **job_input: Any) -> dict[str, Any]:
    response = await client.post("/runsync", json={"input": PLAIN | job_input})
    return dict(response.json())


async def jobs(client: httpx2.AsyncClient, webhook_url: str) -> None:
    """Run jobs that complete, fail or are cancelled, and send invalid requests."""
    assert (await job(client))["status"] == "COMPLETED"
    assert (await job(client, prompt=f"broken {MARK}"))["status"] == "FAILED"
    assert (await job(client, sampling_params={"logit_bias": {"1": 5}, MARK: MARK}))["output"]
    assert (await job(client, sampling_params={"n": MARK}))["status"] == "FAILED"
    assert (await job(client, messages=[{"role": MARK, "content": MARK}]))["status"] == "FAILED"
    assert (await job(client, validation={"json_schema": {"const": MARK}}))["output"]
    hidden = {
        "accessSecret": KEY,
        "accessId": KEY,
        "bucketName": "b",
        "endpointUrl": "http://127.0.0.1:9",
    }
    await client.post("/runsync", json={"input": PLAIN, "s3Config": hidden})
    job_id = await submit_job(client, "", input=PLAIN, webhook=f"{webhook_url}?token={KEY}")
    await wait_for_status(client, job_id, "COMPLETED", "")
    taken_back = await submit_job(client, "", input={"prompt": f"hang {MARK}"})
    await wait_for_status(client, taken_back, "IN_PROGRESS", "")
    await client.post(f"/cancel/{taken_back}")
    bad = {"content-type": "application/json", **HEADERS}
    await client.post("/run", content=f'{{"input": {{"prompt": "{MARK}'.encode(), headers=bad)
    await client.post("/run", json={"input": PLAIN, "policy": {"ttl": MARK}})
    await client.get(f"/status/none?text={MARK}&key={KEY}")


async def chats(client: httpx2.AsyncClient, port: int) -> None:
    """Call OpenAI's routes: unstreamed, streamed, through the queue, invalid, and disconnected."""
    turns = [{"role": "user", "content": MARK}]
    for path in ("/v1/chat/completions", "/v2/default/openai/v1/chat/completions"):
        for stream in (False, True):
            response = await client.post(path, json={"messages": turns, "stream": stream})
            assert MARK in response.text
        wrong = {"messages": turns, "temperature": MARK, "stop": [MARK] * 99}
        assert (await client.post(path, json=wrong)).status_code == 400
    assert (await client.post(ROUTE, json={"prompt": f"broken {MARK}"})).status_code == 500
    # The response has a warning, which is also logged.
    assert (await client.post(ROUTE, json=PLAIN | {"logit_bias": {"1": 5}})).status_code == 200
    await client.post("/tokenize", json={"prompt": MARK})
    wrong_key = {"authorization": f"Bearer {KEY}x"}
    assert (await client.post(ROUTE, json=PLAIN, headers=wrong_key)).status_code == 401
    with await RawConnection.connect(port) as wire:
        body = {"prompt": f"hang {MARK}", "stream": True}
        await wire.post(ROUTE, body, f"authorization: Bearer {KEY}\r\n")
        assert (await wire.read_head())[0] == 200


async def batch(client: httpx2.AsyncClient) -> str:
    """Run a batch of three lines, one of which fails."""
    data = [call("a", MARK), call("b", f"broken {MARK}"), call("c", MARK, logit_bias={"1": 5})]
    files = {"file": ("in.jsonl", "\n".join(map(json.dumps, data)).encode())}
    upload = await client.post("/v1/files", files=files, data={"purpose": "batch"})
    body = {"input_file_id": upload.json()["id"], "endpoint": ROUTE, "completion_window": "24h"}
    batch_id: str = (await client.post("/v1/batches", json=body)).json()["id"]

    async def ended() -> bool:
        return bool((await client.get(f"/v1/batches/{batch_id}")).json()["completed_at"])

    await poll_until(ended)
    return batch_id


async def test_log_lines_have_ids_and_neither_texts_nor_keys(
    script: ScriptFactory, tmp_path: Path
) -> None:
    # R52, R55: server, engine host and store, at the most talkative level.
    environment = {
        "MODEL_PATH": str(script(BROKEN, DEADLY, HANG, {}, slots=4)),
        "API_KEYS": f"other,{KEY}",
        "LOG_LEVEL": "DEBUG",
        "JOB_DB": str(tmp_path / "jobs.sqlite3"),
        "BATCH_TRIES": "1",
        "WEBHOOK_TRIES": "1",
    }
    async with (
        receiving() as hooks,
        run_emulator(environment, "--port", "0", grace_s=0.1) as server,
    ):
        await server.wait_until_listening()
        async with server.client() as client:
            client.headers |= HEADERS
            await jobs(client, hooks.url)
            await chats(client, server.port)
            batch_id = await batch(client)
            named = {"x-request-id": "of-the-crash"}
            response = await client.post(ROUTE, json={"prompt": f"deadly {MARK}"}, headers=named)
            assert response.status_code == 500
            await wait_until(lambda: any("last output" in line for line in server.lines))
            running = (await client.post("/run", json={"input": PLAIN | {"prompt": "hang"}})).json()
            await wait_for_status(client, running["id"], "IN_PROGRESS", "")
        server.process.terminate()
        assert await server.wait_for_exit() == 0
    assert MARK not in server.stderr
    assert KEY not in server.stderr
    log_lines = lines(server)
    assert all(line.keys() >= {"event", "level", "logger", "timestamp"} for line in log_lines)
    for line in log_lines:
        if line["logger"] == "emulator.middleware.request_id":
            assert line.keys() >= {"request_id", "method", "path", "status", "duration_ms"}
        about_a_request = line["logger"].startswith(("handler.", "emulator.runpod.local_worker"))
        # The load of the model belongs to no request.
        if about_a_request and line["logger"] != "handler.settings.engine_configs":
            assert line.keys() & {"request_id", "job_id", "batch_id"}, line
        # The server's end counts jobs; each has a line of its own.
        if "job " in line["event"] and line["logger"] != "emulator.server.graceful_shutdown":
            assert "job_id" in line, line
    posted = [line for line in log_lines if line.get("path") in ("/run", "/runsync")]
    accepted = [line for line in posted if line["status"] == 200]
    assert len(accepted) == 10
    assert all("job_id" in line for line in accepted)
    assert [line["event"] for line in log_lines if line.get("request_id") == "of-the-crash"]
    warned = [line for line in log_lines if "logit_bias" in line["event"]]
    assert {"batch_id": batch_id}.items() <= warned[-1].items()
    assert [line.keys() & {"job_id", "request_id", "batch_id"} for line in warned] == [
        {"job_id"},
        {"request_id"},
        {"request_id", "batch_id"},
    ]
