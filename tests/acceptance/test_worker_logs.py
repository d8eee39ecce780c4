"""The logs of real workers as RunPod's MCP server and other clients read them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.mcp_client import RunPodMCP
from tests.acceptance.workers.processes import WAIT_S, Platform, wait_until_true
from tests.waiting import PATIENCE

ENDPOINT = "logs"
WORKER = """\
import os, sys, time
import runpod

def handler(job):
    if job["input"].get("crashes"):
        os._exit(3)
    for number in range(job["input"]["lines"]):
        print("line", number)
    print("x" * 1_000_000)
    sys.stdout.flush()
    sys.stdout.buffer.write(bytes(range(256)) + b"\\n")
    print("10%\\r20%\\r" + job["input"]["last"], flush=True)
    return "printed"

if os.path.exists("broken"):
    import a_missing_package
runpod.serverless.start({"handler": handler})
"""

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worker")
    (folder / "worker.py").write_text(WORKER)
    return folder


@pytest.fixture(scope="module")
def platform(folder: Path) -> Iterator[Platform]:
    platform = Platform(
        folder,
        LOCAL_WORKER="off",
        ENDPOINT_ID=ENDPOINT,
        WORKERS="1",
        WORKERS_MIN="1",
        WORKER_COMMAND=f"{sys.executable} worker.py",
        MAX_LOSSES="1",
        POLL_HOLD_S="0.5",
    )
    yield platform
    platform.close()


def workers(platform: Platform) -> dict[str, str]:
    """Return the status of each worker, by its id."""
    response = platform.client.get(f"/v2/serverless/{ENDPOINT}/workers").json()
    return {worker["id"]: worker["status"] for worker in response["workers"]}


def ready_worker(platform: Platform) -> str:
    """Wait for the one worker that takes jobs; return its name."""

    def find() -> str | None:
        statuses = workers(platform)
        return next(iter(statuses)) if list(statuses.values()) == ["IDLE"] else None

    return wait_until_true(find)


def log_path(worker: str) -> str:
    return f"/v2/serverless/{ENDPOINT}/workers/{worker}/logs"


def read_events(
    platform: Platform, worker: str, *, until: str, limit: int = 10_000, **request: Any
) -> list[tuple[str, str]]:
    """Follow a log until a line ends with `until`, or `limit` events; return ids and lines."""
    events: list[tuple[str, str]] = []
    with platform.client.stream("GET", log_path(worker), **request) as response:
        assert response.status_code == 200
        event_id = ""
        for line in response.iter_lines():
            if line.startswith("id: "):
                event_id = line.removeprefix("id: ")
            elif line.startswith("data: "):
                events.append((event_id, json.loads(line.removeprefix("data: "))["line"]))
                if events[-1][1].endswith(until) or len(events) == limit:
                    break
    return events


def test_log_of_a_flood_resumes_without_loss_or_repetition(platform: Platform) -> None:
    worker = ready_worker(platform)
    job = platform.run(ENDPOINT, {"lines": 3_000, "last": "last words"})
    assert job.output() == "printed"
    # The server's own lines may come between those of the worker.
    params: dict[str, Any] = {"tail": 5_000, "source": "container"}
    events = read_events(platform, worker, until="last words", params=params)
    lines = [line for _, line in events]
    start = len(lines) - 1 - lines[::-1].index("line 0")
    assert lines[start : start + 3_000] == [f"line {number}" for number in range(3_000)]
    megabyte, *binary, last = lines[start + 3_000 :]
    assert megabyte == "x" * 65_536 + " … (934,464 more bytes)"
    # A line feed and a carriage return are among the 256 bytes.
    assert [line[:2] for line in binary] == ["\x00\x01", "\x0e\x0f"]
    assert last == "last words"
    # New lines may have dropped the oldest ones, so it starts from an event and not from a count.
    parts = events[1_000:1_001]
    while parts[-1] != events[-1]:
        headers = {"Last-Event-ID": parts[-1][0]}
        parts += read_events(
            platform, worker, until="last words", limit=700, headers=headers, params=params
        )
    assert parts == events[1_000:]


def flood(platform: Platform, lines: int) -> list[float]:
    """Let a worker print lines; return how long each request took that was answered meanwhile."""
    ready_worker(platform)
    job = platform.run(ENDPOINT, {"lines": lines, "last": "end of the flood"}).wait_until_started()
    durations_s = []
    while job.status() == "IN_PROGRESS":
        began_at = time.monotonic()
        platform.client.get("/health")
        durations_s.append(time.monotonic() - began_at)
    assert job.output() == "printed"

    def is_omission_logged() -> bool:
        # The server writes it before the first line of a later second.
        platform.run(ENDPOINT, {"lines": 1, "last": "one more line"}).output()
        return "more lines are in the worker's log only" in platform.log

    wait_until_true(is_omission_logged)
    return durations_s


@pytest.mark.long
def test_server_answers_while_a_worker_floods_its_output(platform: Platform) -> None:
    assert flood(platform, 30_000)


@pytest.mark.timing
def test_server_answers_soon_while_a_worker_floods_its_output(platform: Platform) -> None:
    assert max(flood(platform, 200_000)) < 1 * PATIENCE


@pytest.mark.long
def test_runpods_mcp_server_finds_out_why_a_worker_does_not_start(
    platform: Platform, folder: Path
) -> None:
    crashing = ready_worker(platform)
    (folder / "broken").touch()
    url = f"http://127.0.0.1:{platform.port}"
    try:
        with RunPodMCP(url, str(folder / "home")) as mcp:
            endpoints = [each["id"] for each in mcp.call("list-endpoints")["items"]]
            assert endpoints == [ENDPOINT]
            assert mcp.call("get-endpoint", id=ENDPOINT)["workers"]["max"] == 1
            # The running worker ends, and the next ones do not start.
            job = platform.run(ENDPOINT, {"crashes": True})
            assert "exited with code 3" in job.wait_for_end()["error"]
            job_id = mcp.call("run-endpoint", endpointId=ENDPOINT, input={"lines": 1, "last": ""})[
                "id"
            ]
            wait_until_true(lambda: crashing not in workers(platform))
            status = mcp.call("get-job-status", endpointId=ENDPOINT, jobId=job_id)
            assert status["status"] == "IN_QUEUE"
            assert "crash-looping" in status["hint"]
            listed = mcp.call("list-endpoint-workers", id=ENDPOINT)["workers"]
            (unhealthy,) = (each["id"] for each in listed if each["status"] == "UNHEALTHY")
            assert unhealthy in status["hint"]
            log = mcp.call("stream-worker-logs", endpointId=ENDPOINT, workerId=unhealthy)
        printed = [item["line"] for item in log["items"] if item["source"] == "container"]
        system_lines = [item["line"] for item in log["items"] if item["source"] == "system"]
        assert printed[0] == "Traceback (most recent call last):"
        assert printed[-1] == "ModuleNotFoundError: No module named 'a_missing_package'"
        assert system_lines[-1] == f"{unhealthy} exited with code 1"
    finally:
        (folder / "broken").unlink()


@pytest.mark.long
def test_reader_of_a_log_does_not_delay_the_end_of_the_server(folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    (own / "worker.py").write_text(WORKER)
    platform = Platform(
        own,
        LOCAL_WORKER="off",
        ENDPOINT_ID=ENDPOINT,
        WORKERS="1",
        WORKERS_MIN="1",
        WORKER_COMMAND=f"{sys.executable} worker.py",
    )
    try:
        worker = wait_until_true(lambda: next(iter(workers(platform)), None))
        with platform.client.stream("GET", log_path(worker)) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("id: ")
            platform.process.terminate()
            rest = "\n".join(lines)
        assert platform.process.wait(WAIT_S) == 0
        assert f"{worker} " in rest
    finally:
        platform.kill()
