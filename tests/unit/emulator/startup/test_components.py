"""The object graph of the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from watchfiles import Change

from emulator.autoscaling.program.interpreter import Interpreter
from emulator.autoscaling.program.volume import Volume
from emulator.autoscaling.program.worker_program import handler_program
from emulator.startup.components import build_components
from jobs import NewJob
from tests.integration.emulator.conftest import build_settings


def test_state_of_a_handler_has_its_python_with_a_command(tmp_path: Path) -> None:
    python = Interpreter("/opt/python", "chosen")
    program = handler_program(tmp_path / "handler.py", python, "bash start.sh")
    settings = build_settings({"job_db": ":memory:"})
    console = build_components(settings, None, {"default": program}).console_routes
    assert console._handlers["default"].to_wire()["python"] == "/opt/python"


def test_code_saved_in_the_volume_starts_no_new_worker(tmp_path: Path) -> None:
    file = tmp_path / "handler.py"
    program = handler_program(file, Interpreter("/opt/python", "chosen"))
    program = replace(program, volume=Volume(tmp_path / "volume"))
    settings = build_settings({"job_db": ":memory:"})
    (watch,) = build_components(settings, None, {"default": program}).code_watches
    assert watch._filter(Change.modified, str(file))
    assert not watch._filter(Change.modified, str(tmp_path / "volume" / "node.py"))


@pytest.mark.parametrize("variable", ["BATCH_RESULTS", "MAX_JOBBS"])
def test_server_of_a_handler_names_variables_that_are_no_settings(
    variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(variable, "x")
    build_components(build_settings({"job_db": ":memory:"}), None)
    assert [each for each in caplog.messages if each.startswith(f"{variable} ")]


async def test_jobs_that_wait_in_memory_are_logged_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = build_settings({"job_db": ":memory:", "drain_s": 0})
    components = build_components(settings, None)
    async with components.run():
        for _ in range(2):
            await components.store.enqueue(NewJob(endpoint="default", input=b"{}"))
    assert "2 jobs in the queue are lost: JOB_DB=:memory: keeps nothing" in caplog.text
