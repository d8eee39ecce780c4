"""Forked programs behave like programs in a fresh interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.child_processes import module_command
from tests.fork_server.client import ROOT, find_forkable_module
from tests.waiting import wait_until_blocking

HELP = [sys.executable, "-m", "handler", "--help"]
SAFE_HELP = [sys.executable, "-P", *HELP[1:]]
DETECT = module_command("engine.backends.rkllm.abi.detect")


def safe_environment(**variables: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}


def is_running(pid: int) -> bool:
    """Return whether a process runs; a process stays as a zombie until its parent reaps it."""
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment for which a fresh interpreter is started."""
    return safe_environment(PYTHONHASHSEED="1")


def test_forked_program_prints_and_exits_as_a_fresh_one(fresh: dict[str, str]) -> None:
    results = [
        subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=ROOT)
        for command in (HELP, [*HELP[:-1], "--wrong"])
        for env in (safe_environment(), fresh)
    ]
    for forked, other in (results[:2], results[2:]):
        assert (forked.returncode, forked.stdout) == (other.returncode, other.stdout)
        assert forked.stderr == other.stderr
    assert [each.returncode for each in results] == [0, 0, 2, 2]


def test_forked_program_is_a_child_with_its_own_command_line_and_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "emulator", "--port", "0"]
    settings = {"ENGINE": "scripted", "JOB_DB": ":memory:", "HOME": str(tmp_path)}
    with subprocess.Popen(
        command, env=safe_environment(**settings), cwd=tmp_path, start_new_session=True
    ) as program:
        process = Path(f"/proc/{program.pid}")
        assert (process / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0") == command
        assert (process / "cwd").readlink() == tmp_path
        assert f"PPid:\t{os.getpid()}\n" in (process / "status").read_text()
        assert os.getsid(program.pid) == program.pid
        program.send_signal(signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL


def test_forked_program_ends_when_the_test_process_does(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, pytest; from tests.fork_server import client\n"
        "class Config:\n    def add_cleanup(self, function): pass\n"
        "client.install(Config())\n"
        "command = [sys.executable, '-m', 'emulator', '--port', '0']\n"
        "print(subprocess.Popen(command).pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    settings = {"ENGINE": "scripted", "JOB_DB": ":memory:", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=safe_environment(**settings),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
    )
    pid = int(done.stdout)
    wait_until_blocking(lambda: not is_running(pid))


@pytest.mark.parametrize(
    ("command", "environment", "expected"),
    [
        (HELP, {}, "handler"),
        (DETECT, {}, DETECT[-1]),
        ([*HELP[:-1], "doctor"], {"RUNPOD_POD_ID": "1"}, "handler"),
        ([sys.executable, "-m", "emulator"], {"RUNPOD_POD_ID": "1"}, None),
        ([sys.executable, "-X", "dev", "-m", "handler"], {}, None),
        ([sys.executable, "-m", "http.server"], {}, None),
        ([sys.executable, "handler.py"], {}, None),
        ([sys.executable, "-m"], {}, None),
        (["python3", "-m", "handler"], {}, None),
        (DETECT, {"PYTHONPATH": "elsewhere"}, DETECT[-1]),
        (SAFE_HELP, {}, "handler"),
        (SAFE_HELP, {"PYTHONPATH": "elsewhere"}, None),
        (HELP, {"PYTHONPATH": f"elsewhere:{ROOT}"}, "handler"),
        (HELP, {"PYTHONPATH": f"{ROOT}/tests/acceptance/peak:{ROOT}"}, None),
        (HELP, {"FAILPOINT": "x"}, None),
        (HELP, {"LD_PRELOAD": "x.so"}, None),
        (HELP, {"PYTHONUTF8": "1"}, None),
        ([*HELP, "x" * 5_000], {}, None),
    ],
)
def test_program_is_forked_only_if_nothing_can_differ(
    command: list[str], environment: dict[str, str], expected: str | None
) -> None:
    variables = safe_environment(**environment)
    assert find_forkable_module(command, str(ROOT), variables) == expected


def test_program_needs_our_packages_on_its_path() -> None:
    plain = {"PATH": os.environ["PATH"]}
    assert find_forkable_module(HELP, str(ROOT), plain) == "handler"
    assert find_forkable_module(HELP, "/", plain) is None
    assert find_forkable_module(SAFE_HELP, str(ROOT), plain) is None
    assert find_forkable_module(DETECT, "/", plain) == DETECT[-1]
