"""The settings of a server that only runs handlers of the user's."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from common.setting_error import SettingError
from emulator.settings.emulator_settings import EmulatorSettings


def adapt_to_handlers(
    settings: EmulatorSettings,
    programs: Mapping[str, Path | str],
    environment: Mapping[str, str] = os.environ,
) -> EmulatorSettings:
    """Return the settings for handlers: no local worker, and a worker of each always runs.

    `programs` are the files of the handlers, or the images, by endpoint. Paths without an ID of an
    endpoint use the first. Unless JOB_DB is set, the jobs are stored in the user's state folder,
    and not in the project.

    Raises:
        SettingError: WORKERS is 0, or the folder for the jobs cannot be created.
    """
    chosen = settings.model_fields_set
    if "workers" in chosen and settings.workers == 0:
        raise SettingError(
            "WORKERS must be at least 1 for the handler of HANDLER_FILE or WORKER_IMAGE"
        )
    changes: dict[str, object] = {
        "endpoint_id": next(iter(programs)),
        "local_worker": False,
        "engine": "none",
    }
    if "job_db" not in chosen:
        changes["job_db"] = str(_create_state_folder(programs, environment) / "jobs.sqlite3")
    changes["workers"] = max(settings.workers, 1)
    if "workers_min" not in chosen:
        changes["workers_min"] = 1
    return settings.model_copy(update=changes)


def _create_state_folder(
    programs: Mapping[str, Path | str], environment: Mapping[str, str]
) -> Path:
    """Create and return the folder for the jobs of these handlers, the same at each start."""
    paths = "\n".join(
        str(each.resolve()) if isinstance(each, Path) else each for each in programs.values()
    )
    name = f"{next(iter(programs))}-{hashlib.sha256(paths.encode()).hexdigest()[:8]}"
    # https://specifications.freedesktop.org/basedir-spec/latest/
    state = environment.get("XDG_STATE_HOME") or "~/.local/state"
    folder = Path(state).expanduser() / "worker-rkllm" / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"the folder {folder} for the jobs cannot be created: {error.strerror}; choose another "
            "place with --db or JOB_DB"
        ) from None
    return folder
