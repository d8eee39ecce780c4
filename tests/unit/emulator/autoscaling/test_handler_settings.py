"""The settings of a server that only runs a user's handler."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.handler_settings import adapt_to_handler
from emulator.settings.emulator_settings import EmulatorSettings

FILE = Path("/home/me/my-worker/handler.py")


def test_adapt_to_handler_runs_one_worker_and_no_model() -> None:
    settings = adapt_to_handler(EmulatorSettings(engine="scripted"), FILE)
    assert settings.local_worker is False
    assert (settings.workers_min, settings.workers) == (1, 1)
    assert settings.endpoint_id == "my-worker"
    assert settings.handler_file == FILE


def test_adapt_to_handler_keeps_chosen_values() -> None:
    given = EmulatorSettings(engine="scripted", workers=3, workers_min=0, endpoint_id="mine")
    settings = adapt_to_handler(given, FILE)
    assert (settings.workers_min, settings.workers, settings.endpoint_id) == (0, 3, "mine")


def test_adapt_to_handler_refuses_a_server_without_workers() -> None:
    with pytest.raises(SettingError, match="WORKERS must be at least 1"):
        adapt_to_handler(EmulatorSettings(engine="scripted", workers=0), FILE)
