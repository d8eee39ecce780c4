"""The settings of a server that only runs handlers of the user's."""

from __future__ import annotations

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.handler_settings import adapt_to_handlers
from emulator.settings.emulator_settings import EmulatorSettings


def test_adapt_to_handlers_runs_one_worker_and_no_model() -> None:
    settings = adapt_to_handlers(EmulatorSettings(engine="scripted"), "my-worker")
    assert settings.local_worker is False
    assert (settings.workers_min, settings.workers) == (1, 1)
    assert settings.endpoint_id == "my-worker"


def test_adapt_to_handlers_keeps_chosen_values() -> None:
    given = EmulatorSettings(engine="scripted", workers=3, workers_min=0)
    settings = adapt_to_handlers(given, "my-worker")
    assert (settings.workers_min, settings.workers) == (0, 3)


def test_adapt_to_handlers_refuses_a_server_without_workers() -> None:
    with pytest.raises(SettingError, match="WORKERS must be at least 1"):
        adapt_to_handlers(EmulatorSettings(engine="scripted", workers=0), "my-worker")
