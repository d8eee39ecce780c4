"""The environment of a worker, and a real process under its supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from emulator.autoscaling.program.volume import Volume, open_volume
from emulator.autoscaling.worker_log import WorkerLog
from emulator.autoscaling.worker_process import (
    spawn_supervised,
    worker_environment,
)
from tests.unit.emulator.autoscaling.scene import ENDPOINT, URL
from tests.volumes import can_mount
from tests.waiting import wait_until


def test_worker_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MODEL_PATH": "m.gguf",
        "API_KEYS": "one,two",
        "WORKERS": "3",
        "WORKER_COMMAND": "x",
        "RUNPOD_POD_ID": "another",
        "RUNPOD_REALTIME_PORT": "1",
        "RUNPOD_EARLY_FITNESS_CHECKS_DONE": "1",
        "RUNPOD_LOG_LEVEL": "WARN",
    }.items():
        monkeypatch.setenv(name, value)
    variables = worker_environment(URL, "mine", "w1", "one")
    assert variables["MODEL_PATH"] == "m.gguf"
    assert variables["RUNPOD_LOG_LEVEL"] == "WARN"
    assert not {"API_KEYS", "RUNPOD_REALTIME_PORT"} & variables.keys()
    base = f"{URL}/v2/mine"
    assert {name: value for name, value in variables.items() if "WEBHOOK" in name} == {
        "RUNPOD_WEBHOOK_GET_JOB": f"{base}/job-take/$ID?gpu=local",
        "RUNPOD_WEBHOOK_POST_OUTPUT": f"{base}/job-done/$RUNPOD_POD_ID/$ID?gpu=local",
        "RUNPOD_WEBHOOK_POST_STREAM": f"{base}/job-stream/$RUNPOD_POD_ID/$ID?gpu=local",
        "RUNPOD_WEBHOOK_PING": f"{base}/ping/$RUNPOD_POD_ID?gpu=local",
    }
    assert (variables["RUNPOD_POD_ID"], variables["RUNPOD_ENDPOINT_ID"]) == ("w1", "mine")
    assert variables["RUNPOD_AI_API_KEY"] == "one"
    assert variables["RUNPOD_LOG_CAPTURE"] == "all"
    assert "RUNPOD_EARLY_FITNESS_CHECKS_DONE" not in variables
    assert (
        variables["RUNPOD_SKIP_GPU_CHECK"] == variables["RUNPOD_SKIP_AUTO_SYSTEM_CHECKS"] == "true"
    )
    monkeypatch.delenv("RUNPOD_LOG_LEVEL")
    assert worker_environment(URL, "mine", "w1", None)["RUNPOD_LOG_LEVEL"] == "INFO"
    assert "RUNPOD_AI_API_KEY" not in worker_environment(URL, "mine", "w1", None)
    variables = worker_environment(URL, "mine", "w1", "one", "own")
    urls = [value for name, value in variables.items() if "WEBHOOK" in name]
    assert all(each.endswith("?gpu=local&worker_key=own") for each in urls)


def test_handler_gets_the_variables_of_the_shell_and_of_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = {
        "HOST": "db.example.com",
        "PORT": "5432",
        "WORKERS": "3",
        "RUNPOD_VOLUME": "/data",
        "RUNPOD_ENDPOINT_ID": "another",
    }
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("API_KEYS", "secret")
    file = {"HOST": "of the file", "TOKEN": "t", "RUNPOD_POD_ID": "x", "API_KEYS": "of the handler"}
    environment = worker_environment(URL, "mine", "w1", None, variables=file)
    assert {name: environment[name] for name in shell} == shell | {"RUNPOD_ENDPOINT_ID": "mine"}
    # The file adds variables to the shell's, but does not replace the ones that the worker needs.
    assert (environment["TOKEN"], environment["RUNPOD_POD_ID"]) == ("t", "w1")
    assert environment["API_KEYS"] == "of the handler"
    own = worker_environment(URL, "mine", "w1", None, is_own_worker=True)
    assert not {"HOST", "PORT", "WORKERS"} & own.keys()


@pytest.mark.parametrize("allows", [True, False])
def test_handler_that_calls_an_endpoint_calls_this_server(
    monkeypatch: pytest.MonkeyPatch, allows: bool
) -> None:
    for name in (
        *("RUNPOD_ENDPOINT_BASE_URL", "RUNPOD_ALLOW_PRIVATE_DOWNLOAD_URLS"),
        "RUNPOD_API_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    environment = worker_environment(URL, "mine", "w1", None, allows_private_targets=allows)
    assert environment["RUNPOD_ENDPOINT_BASE_URL"] == f"{URL}/v2"
    assert environment["RUNPOD_ALLOW_PRIVATE_DOWNLOAD_URLS"] == ("true" if allows else "false")
    assert environment["RUNPOD_API_KEY"] == "local"
    assert worker_environment(URL, "mine", "w1", "a-key")["RUNPOD_API_KEY"] == "a-key"
    cloud = {"RUNPOD_ENDPOINT_BASE_URL": "https://api.runpod.ai/v2"}
    environment = worker_environment(URL, "mine", "w1", None, variables=cloud)
    assert environment["RUNPOD_ENDPOINT_BASE_URL"] == cloud["RUNPOD_ENDPOINT_BASE_URL"]


def test_start_script_finds_the_python_of_the_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    python = tmp_path / "bin" / "python3"
    path = worker_environment(URL, ENDPOINT, "w", None, python=str(python))["PATH"]
    assert path == "/usr/bin"
    python.parent.mkdir()
    (tmp_path / "bin" / "python").touch(0o755)
    path = worker_environment(URL, ENDPOINT, "w", None, python=str(python))["PATH"]
    assert path == f"{tmp_path}/bin:/usr/bin"


async def test_workers_key_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    program = "print('no answer from /ping/w1?gpu=local&worker_key=own-_1&job_id=a')"
    process = await spawn_supervised(
        "w1", [sys.executable, "-S", "-c", program], {}, None, WorkerLog()
    )
    async with asyncio.timeout(30):
        assert await process.wait() == 0
    assert "w1: no answer from /ping/w1?gpu=local&worker_key=…&job_id=a" in caplog.messages


PARENT = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
def end(*_):
    print("told", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print("x" * 100_000, flush=True)
print(child.pid, os.getpid(), os.environ["NAME"], flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def wait_for_exit(*pids: int) -> None:
    await wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize(("how", "code"), [("terminate", 7), ("kill", 137), ("crash", 139)])
async def test_children_of_a_worker_end_with_it(
    how: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    command = [sys.executable, "-S", "-c", PARENT]
    process = await spawn_supervised("w1", command, {"NAME": "its name"}, None, WorkerLog())
    await wait_until(lambda: "its name" in caplog.text)
    line = next(each for each in caplog.messages if "its name" in each)
    assert line.startswith("w1: ")
    child, worker = map(int, line.split()[1:3])
    assert alive(child)
    assert alive(worker)
    if how == "terminate":
        process.terminate()
    elif how == "kill":
        process.kill()
    else:
        os.kill(worker, signal.SIGSEGV)
    async with asyncio.timeout(30):
        assert await process.wait() == code
    assert process.returncode == code
    await wait_for_exit(child, worker)
    assert ("told" in caplog.text) == (how == "terminate")
    process.terminate()
    process.kill()


async def test_children_of_a_worker_end_when_its_supervisor_was_killed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    command = [sys.executable, "-S", "-c", PARENT]
    process = await spawn_supervised("w1", command, {"NAME": "its name"}, None, WorkerLog())
    await wait_until(lambda: "its name" in caplog.text)
    line = next(each for each in caplog.messages if "its name" in each)
    child, worker = map(int, line.split()[1:3])
    process.kill_orphans()
    assert alive(child)
    os.kill(process._process.pid, signal.SIGKILL)
    await wait_until(lambda: process.returncode is not None)
    process.kill_orphans()
    await wait_for_exit(child, worker)
    async with asyncio.timeout(30):
        await process.wait()


async def test_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    with pytest.raises(FileNotFoundError, match=f"there is no folder {folder}"):
        await spawn_supervised("w1", [sys.executable], {}, folder, WorkerLog())


async def test_missing_command_exits_with_127(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    process = await spawn_supervised("w1", ["/no/such/program"], {}, None, WorkerLog())
    async with asyncio.timeout(30):
        assert await process.wait() == 127
    assert "w1: /no/such/program cannot be started: No such file" in caplog.text


async def test_worker_writes_into_the_folder_of_its_volume(tmp_path: Path) -> None:
    volume = open_volume(tmp_path)
    code = "import pathlib; pathlib.Path('/runpod-volume/x').write_text('1')"
    log = WorkerLog()
    command = [sys.executable, "-I", "-S", "-c", code]
    process = await spawn_supervised("w1", command, {}, None, log, volume=volume)
    async with asyncio.timeout(30):
        code_of_exit = await process.wait()
    lines = [line.text for line in log.lines_after(0)]
    if can_mount():
        assert (code_of_exit, lines) == (0, [])
        assert (tmp_path / "x").read_text() == "1"
    else:
        assert lines[0] == volume.problem


async def test_log_of_a_worker_without_its_volume_names_the_reason(tmp_path: Path) -> None:
    log = WorkerLog()
    command = [sys.executable, "-I", "-S", "-c", ""]
    volume = Volume(tmp_path, "it cannot be mounted")
    process = await spawn_supervised("w1", command, {}, None, log, volume=volume)
    async with asyncio.timeout(30):
        assert await process.wait() == 0
    assert [(line.source, line.text) for line in log.lines_after(0)] == [
        ("system", "it cannot be mounted")
    ]
