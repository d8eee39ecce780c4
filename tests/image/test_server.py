"""The server in a container without privileges: keys, health, kills, the end, limits of memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.image.containers import HARDENED, JOB, Containers
from tests.waiting import wait_until_blocking

# Docker's own limit before it sends SIGKILL is 10 s.
STOP_LIMIT_S = 10.0
ANSWER_S = 120.0
# Its answer still runs when the container is killed.
LONG_JOB = {
    "input": {
        "prompt": "Once upon a time",
        "sampling_params": {"max_tokens": 400, "ignore_eos": True},
    }
}


def test_server_without_privileges_needs_a_key_and_becomes_healthy(
    image: str, containers: Containers
) -> None:
    options = (*HARDENED, "--volume", "jobs:/data", "--health-interval", "1s")
    server = containers.start_server(image, options=options)
    server.wait_until_ready()
    assert server.call("/v1/models", key=None).status_code == 401
    assert server.run_job()["status"] == "COMPLETED"
    wait_until_blocking(lambda: server.state()["Health"]["Status"] == "healthy", gap_s=0.2)


def test_killed_container_completes_its_running_and_its_queued_job(
    image: str, containers: Containers
) -> None:
    # With one slot, the second job waits for the first.
    options = (*HARDENED, "--volume", "jobs:/data")
    server = containers.start_server(image, options=options, MAX_CONCURRENCY="1")
    server.wait_until_ready()
    running = server.call("/run", LONG_JOB).json()["id"]
    wait_until_blocking(lambda: server.call(f"/status/{running}").json()["status"] == "IN_PROGRESS")
    # Its lease is written with the next job that is accepted: until then it counts as not started.
    queued = server.call("/run", JOB).json()["id"]
    server.kill()
    assert server.wait_for_end() == 137
    server.start_again()
    server.wait_until_ready()
    assert server.wait_for_job(queued)["status"] == "COMPLETED"
    assert server.wait_for_job(running, ANSWER_S)["status"] == "COMPLETED"
    attempts = [server.call(f"/console/jobs/{job}").json()["attempt"] for job in (running, queued)]
    assert attempts == [2, 1]


def test_stopped_server_ends_in_time_with_exit_code_0(image: str, containers: Containers) -> None:
    server = containers.start_server(image, options=HARDENED, JOB_DB="/tmp/jobs.sqlite3")  # noqa: S108
    server.wait_until_ready()
    assert server.stop() < STOP_LIMIT_S
    assert server.state()["ExitCode"] == 0


def test_mounted_folder_of_another_user_ends_the_server_with_a_sentence(
    image: str, containers: Containers, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    server = containers.start_server(image, options=("--volume", f"{tmp_path}:/data"))
    assert server.wait_for_end() == 2
    log = server.logs()
    assert "/data" in log.splitlines()[-1], log
    assert "Traceback" not in log


def test_server_runs_as_any_user_with_a_read_only_root(
    image: str, containers: Containers, tmp_path: Path
) -> None:
    os.chown(tmp_path, 12345, 12345)
    options = ("--user", "12345", *HARDENED, "--volume", f"{tmp_path}:/data")
    server = containers.start_server(image, options=options)
    server.wait_until_ready()
    assert server.run_job()["status"] == "COMPLETED"
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {12345}


def test_server_works_with_one_cpu_and_900_megabytes(image: str, containers: Containers) -> None:
    server = containers.start_server(image, options=("--cpus", "1", "--memory", "900m"))
    server.wait_until_ready()
    assert server.run_job()["status"] == "COMPLETED"
    assert server.state()["OOMKilled"] is False


def test_server_with_too_little_memory_ends_with_a_reason(
    image: str, containers: Containers
) -> None:
    server = containers.start_server(image, options=("--memory", "400m"))
    code, log = server.wait_for_end(), server.logs()
    assert code == 1, log
    reasons = [json.loads(line)["event"] for line in log.splitlines() if '"error"' in line]
    assert reasons, log
    assert all("memory" in reason for reason in reasons)
