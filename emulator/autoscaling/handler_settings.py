"""The settings of a server that only runs handlers of the user's."""

from __future__ import annotations

from common.setting_error import SettingError
from emulator.settings.emulator_settings import EmulatorSettings


def adapt_to_handlers(settings: EmulatorSettings, endpoint: str) -> EmulatorSettings:
    """Return the settings for handlers: no local worker, and a worker of each always runs.

    Paths without an ID of an endpoint use this `endpoint`, which is that of the first handler.

    Raises:
        SettingError: WORKERS is 0.
    """
    chosen = settings.model_fields_set
    if "workers" in chosen and settings.workers == 0:
        raise SettingError("WORKERS must be at least 1 for the handler that HANDLER_FILE names")
    changes: dict[str, object] = {"endpoint_id": endpoint, "local_worker": False}
    changes["workers"] = max(settings.workers, 1)
    if "workers_min" not in chosen:
        changes["workers_min"] = 1
    return settings.model_copy(update=changes)
