"""The object graph of the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from watchfiles import Change

from emulator.autoscaling.interpreter import Interpreter
from emulator.autoscaling.volume import Volume
from emulator.autoscaling.worker_program import handler_program
from emulator.startup.components import build_components
from tests.integration.emulator.conftest import build_settings


def test_code_saved_in_the_volume_starts_no_new_worker(tmp_path: Path) -> None:
    file = tmp_path / "handler.py"
    program = handler_program(file, Interpreter("/opt/python", "chosen"))
    program = replace(program, volume=Volume(tmp_path / "volume"))
    settings = build_settings({"job_db": ":memory:"})
    (watch,) = build_components(settings, None, {"default": program}).code_watches
    assert watch._filter(Change.modified, str(file))
    assert not watch._filter(Change.modified, str(tmp_path / "volume" / "node.py"))
