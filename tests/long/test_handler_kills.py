"""A user's handler under kill -9 of its workers and of the server, and under saved edits."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.emulator.processes import build_environment
from tests.integration.emulator.serving import _SSL_WITHOUT_CERTIFICATES
from tests.leftovers import outlives_test
from tests.waiting import wait_until_blocking

JOBS_PER_KILL, KILLS = 5, int(os.environ.get("KILLS", "100"))
ENDPOINT = "my-worker"
WAIT_S = 60.0
# Before each kill, wait at most this long until another job has completed.
_PROGRESS_S = 8.0
_LISTENING = re.compile(r"running on http://127\.0\.0\.1:(\d+)")
HANDLER = """\
import os, time
import runpod

def handler(job):
    with open(os.environ["STARTS"], "a") as starts:
        starts.write(f"{job['id']} {time.time()}\\n")
    time.sleep(job["input"]["sleep_s"])
    return {"number": job["input"]["number"]}

runpod.serverless.start({"handler": handler})
"""


class KilledServer:
    """A server with its handler, which can be killed and started again with its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / ENDPOINT
        self.project.mkdir()
        (folder / "home").mkdir()
        self.starts = folder / "starts"
        self.starts.touch()
        self.edits = 0
        self.edit()
        self.port = 0
        self.start()

    @outlives_test()
    def start(self) -> None:
        """Start the server on its port, or on a free one the first time."""
        log = self.folder / "log"
        settings = {
            "HOME": str(self.folder / "home"),
            "STARTS": str(self.starts),
            "JOB_DB": str(self.folder / "jobs.sqlite3"),
            "MAX_LOSSES": "1000",
            "WORKERS": "2",
            "WORKER_GRACE_S": "0.5",
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "emulator", "--handler", str(self.project)),
                    *("--port", str(self.port)),
                ],
                env=build_environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
            )
        self.port = int(wait_until_blocking(lambda: _LISTENING.search(log.read_text()), WAIT_S)[1])
        self.client = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}/v2/{ENDPOINT}",
            verify=_SSL_WITHOUT_CERTIFICATES,
            timeout=WAIT_S,
        )

    def kill(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()

    def kill_worker(self, chosen: random.Random) -> bool:
        """Kill one of the processes of the workers, if there is any."""
        path = str(self.project / "handler.py").encode()
        pids = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if path in entry.read_bytes().split(b"\0"):
                    pids.append(int(entry.parent.name))
        if not pids:
            return False
        with suppress(ProcessLookupError):
            os.kill(chosen.choice(pids), signal.SIGKILL)
        return True

    def edit(self) -> None:
        """Save the handler with a change, as an editor does."""
        self.edits += 1
        new = self.project / "handler.new"
        new.write_text(f"{HANDLER}# {self.edits}\n")
        new.replace(self.project / "handler.py")

    def send(self, number: int, sleep_s: float) -> str:
        """Send a job; return its id once the server has acknowledged it."""
        body = {"input": {"number": number, "sleep_s": sleep_s}}
        response = self.client.post("/run", json=body)
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    def status(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.client.get(f"/status/{job_id}").json()
        return job


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KilledServer]:
    server = KilledServer(tmp_path)
    yield server
    server.client.close()
    server.process.terminate()
    try:
        assert server.process.wait(WAIT_S) == 0
    finally:
        server.process.kill()


@pytest.mark.timeout(1_800)
def test_no_acknowledged_job_is_lost_or_rerun_after_its_end(server: KilledServer) -> None:
    seed = random.randrange(2**32)
    chosen = random.Random(seed)
    sent: dict[str, int] = {}
    completed_at: dict[str, float] = {}
    kills = {"worker": 0, "server": 0, "edit": 0}

    def check_jobs() -> int:
        """Poll the jobs that have not ended; return how many of them have completed now."""
        count = 0
        for job_id in [each for each in sent if each not in completed_at]:
            job = server.status(job_id)
            if job.get("status") == "COMPLETED":
                assert job["output"] == {"number": sent[job_id]}
                completed_at[job_id] = time.time()
                count += 1
            else:
                assert job.get("status") in ("IN_QUEUE", "IN_PROGRESS"), (seed, job)
        return count

    while sum(kills.values()) < KILLS:
        for _ in range(JOBS_PER_KILL):
            number = len(sent)
            sent[server.send(number, chosen.choice([0, 0.02, 0.3]))] = number
        with suppress(TimeoutError):
            wait_until_blocking(check_jobs, _PROGRESS_S, 0.1)
        kind = chosen.choices(["worker", "server", "edit"], [6, 3, 1])[0]
        if kind == "server":
            server.kill()
            server.start()
        elif kind == "edit":
            server.edit()
        elif not server.kill_worker(chosen):
            continue
        kills[kind] += 1

    def all_completed() -> bool:
        check_jobs()
        return len(completed_at) == len(sent)

    wait_until_blocking(all_completed, 600, 0.5)
    # Check each job once more, and that no job started after it was seen as completed.
    assert all(server.status(job_id)["status"] == "COMPLETED" for job_id in sent)
    starts = [line.split() for line in server.starts.read_text().splitlines()]
    rerun = [job_id for job_id, started_at in starts if float(started_at) > completed_at[job_id]]
    assert rerun == [], (seed, rerun)
    assert {job_id for job_id, _ in starts} == set(sent)
    sys.stderr.write(f"seed {seed}: {len(sent)} jobs, {len(starts)} starts, {kills}\n")
