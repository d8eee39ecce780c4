"""The doctor's option `--record`: record the calls and callbacks of RKLLM's library."""

from __future__ import annotations

from typing import TypeVar

from common.setting_error import SettingError
from engine.backends.rkllm.recording.recording_file import find_write_error
from handler.settings.arguments import DoctorArguments
from handler.settings.shared_settings import Settings

S = TypeVar("S", bound=Settings)


def apply_recording(settings: S, arguments: DoctorArguments) -> S:
    """Return settings that record to the file of `--record`, which replaces RKLLM_RECORD.

    The file is checked here, because a mistake should be reported before the model is loaded.

    Raises:
        SettingError: no engine in use is recorded, or the file cannot be created.
    """
    if arguments.record is None:
        return settings
    if "rkllm" not in settings.backends:
        engines = " and the ".join(sorted(settings.backends))
        raise SettingError(f"--record is for the rkllm engine, and this is the {engines} engine")
    error = find_write_error(arguments.record)
    if error is not None:
        raise SettingError(f"--record: {error}")
    return settings.model_copy(
        update={"rkllm_record": arguments.record, "rkllm_record_text": arguments.record_text}
    )
