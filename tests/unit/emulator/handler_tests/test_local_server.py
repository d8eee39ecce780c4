"""The settings of the server for tests; the acceptance tests start it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from emulator.autoscaling.program.worker_program import WorkerProgram
from emulator.handler_tests.local_server import _without_variables, adapt_settings
from emulator.settings.emulator_settings import EmulatorSettings

PROGRAM = WorkerProgram(command=("python", "x"), file=Path("/srv/my project/handler.py"))
COMMAND = WorkerProgram(command=("run",))


def test_settings_of_the_environment_do_not_change_the_result() -> None:
    settings = EmulatorSettings(
        host="0.0.0.0",  # noqa: S104 - it must be replaced
        api_keys="a-secret",
        workers=5,
        faults_per_request=True,
        fault_seed=1,
        worker_command="run",
        max_chunk_mb=3,
    )
    settings = adapt_settings(settings, PROGRAM)
    assert (settings.host, settings.api_keys, settings.job_db) == ("127.0.0.1", "", ":memory:")
    assert (settings.workers, settings.workers_min, settings.local_worker) == (1, 1, False)
    assert (settings.faults_per_request, settings.fault_seed) == (False, None)
    assert settings.batch_folder() is None
    assert settings.max_chunk_mb == 3
    assert (settings.handler_file, settings.worker_command) == ("", "")


def test_endpoint_is_named_after_the_folder_unless_it_is_set() -> None:
    assert adapt_settings(EmulatorSettings(), PROGRAM).endpoint_id == "my-project"
    assert adapt_settings(EmulatorSettings(endpoint_id="mine"), PROGRAM).endpoint_id == "mine"
    assert adapt_settings(EmulatorSettings(), COMMAND).endpoint_id == "default"


def test_variables_are_absent_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST_OF_TWO", "1")
    with _without_variables({"FIRST_OF_TWO": "2", "SECOND_OF_TWO": "3"}):
        assert "FIRST_OF_TWO" not in os.environ
    assert os.environ["FIRST_OF_TWO"] == "1"
    assert "SECOND_OF_TWO" not in os.environ
