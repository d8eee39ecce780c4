"""The settings of a server that only runs handlers of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.program.handler_settings import adapt_to_handlers
from emulator.settings.emulator_settings import EmulatorSettings

FILES = {"my-worker": Path("/home/me/my-worker/handler.py")}
ENVIRONMENT: dict[str, str] = {}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(ENVIRONMENT, "XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def test_adapt_to_handlers_runs_one_worker_and_no_model() -> None:
    settings = adapt_to_handlers(EmulatorSettings(engine="scripted"), FILES, ENVIRONMENT)
    assert settings.local_worker is False
    assert (settings.workers_min, settings.workers) == (1, 1)
    assert settings.endpoint_id == "my-worker"


def test_adapt_to_handlers_keeps_chosen_values() -> None:
    chosen = EmulatorSettings(engine="scripted", workers=3, workers_min=0)
    settings = adapt_to_handlers(chosen, FILES, ENVIRONMENT)
    assert (settings.workers_min, settings.workers) == (0, 3)


def test_adapt_to_handlers_refuses_a_server_without_workers() -> None:
    with pytest.raises(SettingError, match="WORKERS must be at least 1"):
        adapt_to_handlers(EmulatorSettings(engine="scripted", workers=0), FILES, ENVIRONMENT)


def test_adapt_to_handlers_stores_jobs_by_handlers_outside_of_the_project(state: Path) -> None:
    first, second = (
        adapt_to_handlers(EmulatorSettings(engine="scripted"), FILES, ENVIRONMENT).job_db
        for _ in range(2)
    )
    assert first == second
    folder = Path(first).parent
    assert (folder.parent, folder.is_dir()) == (state / "worker-rkllm", True)
    assert folder.name.startswith("my-worker-")
    other = {"my-worker": Path("/elsewhere/my-worker/handler.py")}
    settings = adapt_to_handlers(EmulatorSettings(engine="scripted"), other, ENVIRONMENT)
    assert settings.job_db != first


def test_adapt_to_handlers_keeps_a_chosen_database() -> None:
    chosen = EmulatorSettings(engine="scripted", job_db=":memory:")
    assert adapt_to_handlers(chosen, FILES, ENVIRONMENT).job_db == ":memory:"


def test_adapt_to_handlers_names_the_folder_where_jobs_cannot_be_stored(state: Path) -> None:
    (state / "worker-rkllm").touch()
    with pytest.raises(SettingError, match="choose another place with --db or JOB_DB"):
        adapt_to_handlers(EmulatorSettings(engine="scripted"), FILES, ENVIRONMENT)
