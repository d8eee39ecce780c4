"""`python -m emulator --workers N`: the unmodified SDK, come and gone with its jobs."""

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
        # An idle worker that is told to end does so when its call for jobs is answered.
        "POLL_HOLD_S": "1",
        **more,
    }


def processes(folder: Path) -> list[int]:
    """Find the keeper, the worker and its heartbeat: all have the program in their command."""
    found = []
    mark = f"{folder}/my worker.py".encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


async def ended(client: httpx2.AsyncClient, job_id: str) -> dict[str, Any]:
    response = await client.get(f"/v2/default/status-sync/{job_id}?wait=40000")
    job: dict[str, Any] = response.json()
    return job


async def run(client: httpx2.AsyncClient, **given: Any) -> str:
    response = await client.post("/v2/default/run", json={"input": given})
    return str(response.json()["id"])


async def workers(client: httpx2.AsyncClient) -> dict[str, int]:
    counts: dict[str, int] = (await client.get("/v2/default/health")).json()["workers"]
    return counts


def calling(server: EmulatorProcess) -> httpx2.AsyncClient:
    return http_client(f"http://127.0.0.1:{server.port}", headers=KEY, timeout=50)


def log(server: EmulatorProcess) -> list[str]:
    return [json.loads(line)["event"] for line in server.lines]


@pytest.mark.long
async def test_worker_comes_with_the_jobs_and_goes_after_them(tmp_path: Path) -> None:
    given = settings(tmp_path)
    # The SDK prefers this key, which is one of the cloud, to what it is told.
    (tmp_path / "home" / ".runpod").mkdir()
    config = '[default]\napi_key = "of-the-cloud"\n'
    (tmp_path / "home" / ".runpod" / "config.toml").write_text(config)
    async with run_emulator(given, "--port", "0", "--workers", "1") as server:
        await server.wait_until_listening()
        async with calling(server) as client:
            assert processes(tmp_path) == []
            first = await run(client, name="first")
            await wait_until(lambda: len(processes(tmp_path)) > 0)
            # Others come while it imports the SDK; they are for the same worker.
            second = await run(client, name="second")
            assert (await workers(client))["initializing"] == 1
            jobs = [await ended(client, each) for each in (first, second)]
            assert [job["status"] for job in jobs] == ["COMPLETED"] * 2
            assert jobs[0]["delayTime"] >= 500
            assert len({job["output"]["pid"] for job in jobs}) == 1
            pod = jobs[0]["output"]["pod"]
            assert pod == jobs[0]["workerId"]
            assert any(f"{pod}: at work on first" in line for line in log(server))
            assert (await workers(client))["initializing"] == 0
            # A worker that dies costs its job nothing but a second try, by another.
            crash = await run(client, name="crash", crash=True)
            await wait_until(lambda: any("was killed by SIGKILL" in x for x in log(server)))
            await client.post(f"/v2/default/cancel/{crash}")
            last = await ended(client, await run(client, name="last"))
            assert last["status"] == "COMPLETED"
            assert last["output"]["pod"] != pod
            await wait_until(lambda: any("has ended" in line for line in log(server)))
            # Not by the crashed one's successor alone: whoever was started for a job goes again.
            await wait_until(lambda: processes(tmp_path) == [])

            async def none_are_counted() -> bool:
                return sum((await workers(client)).values()) == 0

            await poll_until(none_are_counted)
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait_for_exit() == 0
        assert "Traceback" not in server.stderr
        assert "secret" not in server.stderr


async def test_end_of_the_server_is_the_end_of_its_workers(tmp_path: Path) -> None:
    given = settings(tmp_path, WORKERS_MIN="1", WORKERS="1", QUEUE_DELAY_S="0")
    async with run_emulator(given, "--port", "0") as server:
        await server.wait_until_listening()
        async with calling(server) as client:
            job_id = await run(client, name="slow", sleep_s=2)
            await wait_until(lambda: any("at work on slow" in line for line in log(server)))
            assert len(processes(tmp_path)) >= 2
        # What runs may finish.
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait_for_exit() == 0
        assert processes(tmp_path) == []
    async with run_emulator(given, "--port", "0") as server:
        await server.wait_until_listening()
        async with calling(server) as client:
            assert (await ended(client, job_id))["status"] == "COMPLETED"
            hanging = await run(client, name="hang", sleep_s=600)
            await wait_until(lambda: any("at work on hang" in line for line in log(server)))
        assert len(processes(tmp_path)) >= 2
        os.kill(server.pid, signal.SIGKILL)
        await server.wait_for_exit()
        await wait_until(lambda: processes(tmp_path) == [])
    async with run_emulator(given | {"WORKERS": "0"}, "--port", "0") as server:
        await server.wait_until_listening()
        async with calling(server) as client:
            # Its worker went with the server, and is not waited for.
            job = (await client.get(f"/v2/default/status/{hanging}")).json()
            assert job["status"] == "IN_QUEUE"


async def test_bad_settings_are_one_line_and_code_2(tmp_path: Path) -> None:
    given = settings(tmp_path)
    async with run_emulator(given | {"WORKER_COMMAND": "python 'x"}) as server:
        assert await server.wait_for_exit() == 2
        assert server.lines[0].startswith("WORKER_COMMAND: ")
    for arguments in (("--workers", "-1"), ("--worker-command", "python 'x")):
        async with run_emulator(given, *arguments) as server:
            assert await server.wait_for_exit() == 2
            assert arguments[0] in server.lines[-1]
