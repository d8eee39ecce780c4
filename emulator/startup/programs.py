"""Find the programs of the worker processes: the user's handlers and images, or a command."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from common.setting_error import SettingError
from emulator.autoscaling.program.handler_list import find_handlers, split_handlers
from emulator.autoscaling.program.handler_settings import adapt_to_handlers
from emulator.autoscaling.program.image_program import find_image_programs
from emulator.autoscaling.program.volume import open_volume
from emulator.autoscaling.program.worker_program import (
    WorkerProgram,
    command_program,
    handler_programs,
    missing_sdk,
)
from emulator.settings.emulator_settings import EmulatorSettings

logger = logging.getLogger(__name__)


def find_programs(
    settings: EmulatorSettings, handlers: Sequence[str] = (), images: Sequence[str] = ()
) -> tuple[EmulatorSettings, dict[str, WorkerProgram]]:
    """Return the settings for the user's programs, and all programs by endpoint.

    `handlers` and `images` are those of the options; without them, the settings name them. Without
    any, the program is that of the workers of the embedded model.

    Raises:
        SettingError: a setting cannot be used, or an image cannot be built or pulled.
    """
    of_handlers: dict[str, WorkerProgram] = {}
    if handlers := handlers or split_handlers(settings.handler_file):
        is_named = "endpoint_id" in settings.model_fields_set
        files = find_handlers(handlers, settings.endpoint_id if is_named else None)
        of_handlers = handler_programs(files, settings.worker_python, settings.worker_command)
    of_images = find_image_programs(settings, images)
    if of_images and not of_handlers and settings.worker_python is not None:
        raise SettingError(
            "--python (WORKER_PYTHON) has no effect on --image, whose containers have their own"
        )
    if both := of_handlers.keys() & of_images:
        raise SettingError(f"--handler and --image: both have the endpoint {min(both)}")
    if programs := {**of_handlers, **of_images}:
        names = {endpoint: each.file or str(each.name) for endpoint, each in programs.items()}
        settings = adapt_to_handlers(settings, names)
    else:
        program = command_program(settings.worker_command, settings.worker_python)
        if settings.workers and (reason := missing_sdk(settings.worker_command)):
            raise SettingError(reason)
        programs = {settings.endpoint_id: program}
    if settings.volume_dir is not None and len(programs) > len(of_images):
        volume = open_volume(settings.volume_dir)
        programs = {
            endpoint: each if each.image is not None else replace(each, volume=volume)
            for endpoint, each in programs.items()
        }
    return settings, programs


def warn_about_volume(settings: EmulatorSettings, programs: Iterable[WorkerProgram]) -> None:
    """Log once why the workers do not get the folder of VOLUME_DIR, if they do not."""
    if settings.volume_dir is None:
        return
    if not settings.workers:
        logger.warning("VOLUME_DIR has no effect: the server starts no workers")
        return
    volumes = [program.volume for program in programs if program.volume is not None]
    if volumes and volumes[0].problem is not None:
        logger.warning("%s", volumes[0].problem)


def describe_programs(
    settings: EmulatorSettings, programs: Iterable[WorkerProgram]
) -> dict[str, Any]:
    """Return the rows of the log at the start on what the workers run, if that was chosen."""
    programs = list(programs)
    rows: dict[str, Any] = {}
    if files := [str(each.file) for each in programs if each.file is not None]:
        rows["handler"] = ", ".join(files)
    if images := [str(each.image) for each in programs if each.image is not None]:
        rows["image"] = ", ".join(images)
    if rows:
        rows["workers"] = settings.workers
    if pythons := [str(each.python) for each in programs if each.python is not None]:
        rows["python"] = ", ".join(dict.fromkeys(pythons))
    return rows
