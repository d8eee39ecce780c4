"""The process between the server and a worker: neither survives the other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from emulator.autoscaling import supervisor
from emulator.autoscaling.program.volume import open_volume
from tests.waiting import wait_until_blocking

# A worker with a child process; it prints both process ids.
WORKER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
print(os.getpid(), child.pid, flush=True)
child.wait()
"""


@pytest.fixture(params=["no volume", "volume"])
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> Sequence[str]:
    """Return the prefix of a worker's command, empty where the kernel allows no mounts."""
    return open_volume(tmp_path).command_prefix if request.param == "volume" else ()


@contextmanager
def supervised(*command: str, prefix: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    interpreter = [sys.executable, "-I", "-S"]
    with subprocess.Popen(
        [
            *prefix,
            *(*interpreter, supervisor.__file__),
            *(command or (*interpreter, "-c", WORKER)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process


def read_ids(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    # One that has ended may stay as a zombie, because its parent has ended too.
    return "State:\tZ" not in status


def test_worker_and_its_children_end_when_the_server_does(prefix: Sequence[str]) -> None:
    with supervised(prefix=prefix) as process:
        pids = read_ids(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 128 + signal.SIGKILL
        wait_until_blocking(lambda: not any(map(is_running, pids)))


def test_worker_ends_when_the_supervisor_is_killed(prefix: Sequence[str]) -> None:
    with supervised(prefix=prefix) as process:
        worker, _ = read_ids(process)
        process.kill()
        process.wait()
        wait_until_blocking(lambda: not is_running(worker))


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.abort()", 134)]
)
def test_exit_code_is_that_of_the_worker(code: str, expected: int) -> None:
    with supervised(sys.executable, "-I", "-S", "-c", code) as process:
        assert process.wait() == expected


def test_command_that_does_not_exist_is_one_sentence() -> None:
    with supervised("/no/such/worker") as process:
        _, error = process.communicate()
    assert process.returncode == 127
    assert error == "/no/such/worker cannot be started: No such file or directory\n"


@pytest.mark.parametrize("is_killed", [True, False])
def test_command_for_the_container_runs_only_at_a_kill(tmp_path: Path, is_killed: bool) -> None:
    removed = tmp_path / "removed"
    removal = json.dumps(["touch", str(removed)])
    ending = "exec sleep 60" if is_killed else "true"
    with supervised("--on-kill", removal, "sh", "-c", f"echo ready; {ending}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if is_killed:
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
        process.stdout.close()
        process.stdout = None
        assert process.wait(60) == (137 if is_killed else 0)
    assert removed.exists() is is_killed
