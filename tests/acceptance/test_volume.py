"""`--volume DIR`: the workers that the server starts have the folder as `/runpod-volume`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.processes import build_environment, run_emulator
from tests.volumes import can_mount
from tests.waiting import wait_until

# No RunPod worker: it writes its file, and stays until the server ends it.
WRITER = """
import time
from pathlib import Path
try:
    Path("/runpod-volume/x").write_text("from the worker")
except OSError as error:
    print("not written:", error.strerror, flush=True)
time.sleep(600)
"""


async def test_worker_of_a_server_writes_into_the_folder_of_the_user(
    script: ScriptFactory, tmp_path: Path
) -> None:
    writer = tmp_path / "writer.py"
    writer.write_text(WRITER)
    folder = tmp_path / "data"
    folder.mkdir()
    command = f"{sys.executable} -I -S {writer}"
    workers = ("--workers", "1", "--worker-command", command)
    settings = {"MODEL_PATH": str(script({})), "WORKERS_MIN": "1", "DRAIN_S": "0"}
    async with run_emulator(settings, "--port", "0", "--volume", str(folder), *workers) as server:
        await server.wait_until_listening()
        await wait_until(lambda: (folder / "x").exists() or "not written" in server.stderr)
        assert (folder / "x").exists() == can_mount()
        assert ("cannot be mounted at /runpod-volume" in server.stderr) == (not can_mount())
        server.process.terminate()
        assert await server.wait_for_exit() == 0


async def test_server_without_workers_says_that_a_volume_has_no_effect(
    script: ScriptFactory, tmp_path: Path
) -> None:
    settings = {"MODEL_PATH": str(script({})), "VOLUME_DIR": str(tmp_path)}
    async with run_emulator(settings, "--port", "0") as server:
        await server.wait_until_listening()
        await wait_until(lambda: "VOLUME_DIR has no effect" in server.stderr)


@pytest.mark.long
def test_worker_of_a_tests_file_writes_into_the_folder_of_the_user(tmp_path: Path) -> None:
    # It ends without asking for a job, so its test fails.
    (tmp_path / "writer.py").write_text(WRITER.replace("time.sleep(600)", ""))
    (tmp_path / "tests.json").write_text(json.dumps({"tests": [{"name": "a", "input": {}}]}))
    (tmp_path / "data").mkdir()
    command = f"{sys.executable} -I -S writer.py"
    ran = subprocess.run(
        [sys.executable, "-m", "emulator", "test", "--command", command, "--volume", "data"],
        env=build_environment({}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1, ran.stderr
    assert (tmp_path / "data" / "x").exists() == can_mount()
    warning = f"warning: {tmp_path}/data cannot be mounted at /runpod-volume: "
    assert ran.stderr.startswith(warning) == (not can_mount())
