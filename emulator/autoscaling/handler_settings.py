"""The settings of a server that only runs a user's handler."""

from __future__ import annotations

from pathlib import Path

from common.setting_error import SettingError
from emulator.autoscaling.handler_file import name_endpoint
from emulator.settings.emulator_settings import EmulatorSettings


def adapt_to_handler(settings: EmulatorSettings, file: Path) -> EmulatorSettings:
    """Return the settings for the handler in `file`: no local worker, and a worker always runs.

    The endpoint is named after the handler's folder unless it is set.

    Raises:
        SettingError: WORKERS is 0.
    """
    chosen = settings.model_fields_set
    if "workers" in chosen and settings.workers == 0:
        raise SettingError("WORKERS must be at least 1 for the handler that HANDLER_FILE names")
    changes: dict[str, object] = {"handler_file": file, "local_worker": False}
    changes["workers"] = max(settings.workers, 1)
    if "workers_min" not in chosen:
        changes["workers_min"] = 1
    if "endpoint_id" not in chosen:
        changes["endpoint_id"] = name_endpoint(file)
    return settings.model_copy(update=changes)
