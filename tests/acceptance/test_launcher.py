"""`python -m emulator --workers N`: workers of the unmodified SDK start and end with the jobs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.integration.emulator.serving import http_client
from tests.waiting import poll_until, wait_until

WORKER = """
import os, sys, time
import runpod

def handler(job):
    print("at work on", job["input"]["name"], flush=True)
    if job["input"].get("crash"):
        os.kill(os.getpid(), 9)
    time.sleep(job["input"].get("sleep_s", 0))
    return {"pid": os.getpid(), "pod": os.environ["RUNPOD_POD_ID"]}

if __name__ == "__main__":
    runpod.serverless.start({"handler": handler})
"""
KEY = {"Authorization": "Bearer secret-1"}


def settings(folder: Path, **more: str) -> dict[str, str]:
    (folder / "my worker.py").write_text(WORKER)
    (folder / "home").mkdir()
    return {
        "ENGINE": "scripted",
        "HOME": str(folder / "home"),
        "API_KEYS": "secret-1,secret-2",
        "LOCAL_WORKER": "off",
        "JOB_DB": str(folder / "jobs.sqlite3"),
        "WORKER_COMMAND": f"python '{folder}/my worker.py'",
        "QUEUE_DELAY_S": "0.5",
        "IDLE_TIMEOUT_S": "1",
        # An idle worker ends when its poll for jobs returns.
        "POLL_HOLD_S": "1",
        **more,
    }


def processes(folder: Path) -> list[int]:
    """Return the pids of the launcher, the worker and its heartbeat, by the program path."""
    pids = []
    mark = f"{folder}/my worker.py".encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark in entry.read_bytes().split(b"\0"):
                pids.append(int(entry.parent.name))
        except OSError:
            continue
    return pids


async def wait_for_end(client: httpx2.AsyncClient, job_id: str) -> dict[str, Any]:
    response = await client.get(f"/v2/default/status-sync/{job_id}?wait=40000")
    job: dict[str, Any] = response.json()
    return job


async def run(client: httpx2.AsyncClient, **job_input: Any) -> str:
    response = await client.post("/v2/default/run", json={"input": job_input})
    return str(response.json()["id"])


async def workers(client: httpx2.AsyncClient) -> dict[str, int]:
    counts: dict[str, int] = (await client.get("/v2/default/health")).json()["workers"]
    return counts


def client_of(server: EmulatorProcess) -> httpx2.AsyncClient:
    return http_client(f"http://127.0.0.1:{server.port}", headers=KEY, timeout=50)


def log(server: EmulatorProcess) -> list[str]:
    return [json.loads(line)["event"] for line in server.lines]


@pytest.mark.long
async def test_worker_starts_with_a_job_and_ends_when_idle(tmp_path: Path) -> None:
    variables = settings(tmp_path)
    # The SDK prefers the cloud's key in this file to the key in its environment.
    (tmp_path / "home" / ".runpod").mkdir()
    config = '[default]\napi_key = "of-the-cloud"\n'
    (tmp_path / "home" / ".runpod" / "config.toml").write_text(config)
    async with run_emulator(variables, "--port", "0", "--workers", "1") as server:
        await server.wait_until_listening()
        async with client_of(server) as client:
            assert processes(tmp_path) == []
            first = await run(client, name="first")
            await wait_until(lambda: len(processes(tmp_path)) > 0)
            # Jobs that arrive while the worker imports the SDK do not start another worker.
            second = await run(client, name="second")
            assert (await workers(client))["initializing"] == 1
            jobs = [await wait_for_end(client, each) for each in (first, second)]
            assert [job["status"] for job in jobs] == ["COMPLETED"] * 2
            assert jobs[0]["delayTime"] >= 500
            assert len({job["output"]["pid"] for job in jobs}) == 1
            pod = jobs[0]["output"]["pod"]
            assert pod == jobs[0]["workerId"]
            assert any(f"{pod}: at work on first" in line for line in log(server))
            assert (await workers(client))["initializing"] == 0
            # After a crash of its worker, another one retries the job.
            crash = await run(client, name="crash", crash=True)
            await wait_until(lambda: any("was killed by SIGKILL" in x for x in log(server)))
            await client.post(f"/v2/default/cancel/{crash}")
            last = await wait_for_end(client, await run(client, name="last"))
            assert last["status"] == "COMPLETED"
            assert last["output"]["pod"] != pod
            await wait_until(lambda: any("has ended" in line for line in log(server)))
            # All workers end when idle, not only the one that replaced the crashed worker.
            await wait_until(lambda: processes(tmp_path) == [])

            async def no_worker_is_counted() -> bool:
                return sum((await workers(client)).values()) == 0

            await poll_until(no_worker_is_counted)
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait_for_exit() == 0
        assert "Traceback" not in server.stderr
        assert "secret" not in server.stderr


@pytest.mark.long
async def test_workers_end_with_the_server(tmp_path: Path) -> None:
    variables = settings(tmp_path, WORKERS_MIN="1", WORKERS="1", QUEUE_DELAY_S="0")
    async with run_emulator(variables, "--port", "0") as server:
        await server.wait_until_listening()
        async with client_of(server) as client:
            job_id = await run(client, name="slow", sleep_s=2)
            await wait_until(lambda: any("at work on slow" in line for line in log(server)))
            assert len(processes(tmp_path)) >= 2
        # A running job may finish.
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait_for_exit() == 0
        assert processes(tmp_path) == []
    async with run_emulator(variables, "--port", "0") as server:
        await server.wait_until_listening()
        async with client_of(server) as client:
            assert (await wait_for_end(client, job_id))["status"] == "COMPLETED"
            hanging = await run(client, name="hang", sleep_s=600)
            await wait_until(lambda: any("at work on hang" in line for line in log(server)))
        assert len(processes(tmp_path)) >= 2
        os.kill(server.pid, signal.SIGKILL)
        await server.wait_for_exit()
        await wait_until(lambda: processes(tmp_path) == [])
    async with run_emulator(variables | {"WORKERS": "0"}, "--port", "0") as server:
        await server.wait_until_listening()
        async with client_of(server) as client:
            # The server does not wait for the job's worker, which ended with it.
            job = (await client.get(f"/v2/default/status/{hanging}")).json()
            assert job["status"] == "IN_QUEUE"


async def test_bad_settings_are_one_line_and_code_2(tmp_path: Path) -> None:
    variables = settings(tmp_path)
    async with run_emulator(variables | {"WORKER_COMMAND": "python 'x"}) as server:
        assert await server.wait_for_exit() == 2
        assert server.lines[0].startswith("WORKER_COMMAND: ")
    for arguments in (("--workers", "-1"), ("--worker-command", "python 'x")):
        async with run_emulator(variables, *arguments) as server:
            assert await server.wait_for_exit() == 2
            assert arguments[0] in server.lines[-1]
