"""Faults on purpose at a real server, met by an SDK worker and a client that tries again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.workers.processes import HANDLERS, WAIT_S, Job, Platform, SDKWorker, becomes

JOBS = 4
ENDPOINT = "plain"

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    found = Platform(
        tmp_path,
        LOCAL_WORKER="off",
        LOG_LEVEL="INFO",
        MAX_LOSSES="20",
        FAULT_429="0.3",
        FAULT_500="0.3",
        FAULT_DROP_POST="0.4",
        FAULT_LOSE_LEASE="0.4",
        FAULT_SEED="7",
    )
    yield found
    found.close()


@pytest.fixture
def worker(platform: Platform, tmp_path: Path) -> Iterator[SDKWorker]:
    folder = tmp_path / "worker"
    folder.mkdir()
    # Its pings tell of a result that it has given up to send.
    found = SDKWorker(
        platform,
        ENDPOINT,
        folder,
        [str(HANDLERS)],
        {"KIND": ENDPOINT, "RUNPOD_PING_INTERVAL": "1000"},
    )
    yield found
    found.close()


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_every_job_is_answered_once_whatever_fails(platform: Platform) -> None:
    refused: list[int] = []

    def asked(method: str, path: str, body: object = None) -> dict[str, object] | None:
        answer = platform.client.request(method, f"/v2/{ENDPOINT}/{path}", json=body)
        if answer.status_code != 200:
            refused.append(answer.status_code)
            return None
        found: dict[str, object] = answer.json()
        return found

    def sent(number: int) -> Job:
        body = {"input": {"say": f"job {number}"}}
        accepted = becomes(lambda: asked("POST", "run", body))
        return Job(platform, ENDPOINT, str(accepted["id"]))

    def ended(job: Job) -> dict[str, object] | None:
        found = asked("GET", f"status/{job.id}")
        return found if found and found["status"] not in ("IN_QUEUE", "IN_PROGRESS") else None

    for number, job in enumerate([sent(number) for number in range(JOBS)]):
        status = becomes(partial(ended, job), 2 * WAIT_S)
        assert status["status"] == "COMPLETED", status
        assert status["output"] == {"said": f"job {number}", "job": ["id", "input"]}
    assert set(refused) == {429, 500}
    for fault in ("FAULT_DROP_POST", "FAULT_LOSE_LEASE"):
        assert fault in platform.log
