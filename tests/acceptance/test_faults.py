"""Injected faults on a real server, with an SDK worker and a client that retries."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.workers.processes import (
    HANDLERS,
    WAIT_S,
    Job,
    Platform,
    SDKWorker,
    wait_until_true,
)

JOBS = 4
ENDPOINT = "plain"
RULES: list[dict[str, object]] = [
    {"fault": "status=429; retry-after=1", "probability": 0.3},
    {"fault": "status=500", "probability": 0.3},
    {"fault": "close", "operation": "job-done", "probability": 0.4},
    {"fault": "lose-lease", "operation": "job-take", "probability": 0.4},
    {"fault": "lose-lease", "operation": "job-take-batch", "probability": 0.4},
]

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    platform = Platform(
        tmp_path,
        LOCAL_WORKER="off",
        LOG_LEVEL="INFO",
        MAX_LOSSES="20",
        FAULTS_PER_REQUEST="on",
        FAULT_SEED="7",
    )
    for rule in RULES:
        platform.client.post("/faults", json=rule).raise_for_status()
    yield platform
    platform.close()


@pytest.fixture
def worker(platform: Platform, tmp_path: Path) -> Iterator[SDKWorker]:
    folder = tmp_path / "worker"
    folder.mkdir()
    # The worker's pings show the server that it has dropped a result.
    worker = SDKWorker(
        platform,
        ENDPOINT,
        folder,
        [str(HANDLERS)],
        {"KIND": ENDPOINT, "RUNPOD_PING_INTERVAL": "1000"},
    )
    yield worker
    worker.close()


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_every_job_completes_despite_faults(platform: Platform) -> None:
    refused: list[int] = []

    def request_or_none(method: str, path: str, body: object = None) -> dict[str, object] | None:
        response = platform.client.request(method, f"/v2/{ENDPOINT}/{path}", json=body)
        if response.status_code != 200:
            refused.append(response.status_code)
            return None
        payload: dict[str, object] = response.json()
        return payload

    def submit(number: int) -> Job:
        body = {"input": {"say": f"job {number}"}}
        accepted = wait_until_true(lambda: request_or_none("POST", "run", body))
        return Job(platform, ENDPOINT, str(accepted["id"]))

    def read_final(job: Job) -> dict[str, object] | None:
        payload = request_or_none("GET", f"status/{job.id}")
        return payload if payload and payload["status"] not in ("IN_QUEUE", "IN_PROGRESS") else None

    for number, job in enumerate([submit(number) for number in range(JOBS)]):
        status = wait_until_true(partial(read_final, job), 2 * WAIT_S)
        assert status["status"] == "COMPLETED", status
        assert status["output"] == {"said": f"job {number}", "job": ["id", "input"]}
    assert set(refused) == {429, 500}
    for line in ("fault on purpose for job-done: close", "lose-lease: job "):
        assert line in platform.log
