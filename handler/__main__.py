"""Run the RunPod worker, or one local job outside RunPod: `python -m handler`.

`python -m handler doctor` reports what the configured engine supports, and runs no job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # The working folder is first on the path, and an engine.py in it would hide this package.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from handler.settings.arguments import parse_doctor

if TYPE_CHECKING:
    from handler.settings.worker_settings import WorkerSettings


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m handler") -> int:
    """Run the worker, one local job or the doctor, and return the exit code.

    `argv` defaults to sys.argv[1:]; `prog` is the command's name in usage messages. The
    imports are inside the function for two reasons: `--help` and argument errors need none of them,
    and the engine loads its model while the rest is imported, which takes a second.
    """
    doctor_arguments = parse_doctor(argv, prog)

    from common.setting_error import SettingError, exit_on_setting_error
    from handler.settings.engine_configs import build_engine, build_engine_configs
    from handler.settings.model_settings import resolve_models
    from handler.settings.shared_settings import read_settings
    from handler.settings.worker_settings import NO_SDK, WorkerSettings

    settings = read_settings(WorkerSettings)
    try:
        settings = resolve_models(settings)
    except SettingError as error:
        exit_on_setting_error(error)
    if doctor_arguments is not None:
        from handler.doctor import bundle, command
        from handler.doctor.recording import apply_recording

        try:
            settings = apply_recording(settings, doctor_arguments)
            if doctor_arguments.bundle is not None:
                bundle.check_path(doctor_arguments.bundle)
        except SettingError as error:
            exit_on_setting_error(error)
        configs = [*build_engine_configs(settings).values()]
        return command.main(configs, doctor_arguments.gguf, doctor_arguments.bundle)
    engine = build_engine(settings)
    engine.spawn()

    from handler.composition import build_result_uploader, build_services, build_validation
    from handler.logs.configuration import configure_logging
    from handler.worker.local import has_local_platform, is_local, run_local

    level = settings.log_level
    if is_local() and "log_level" not in settings.model_fields_set:
        # The output of one local job is its answer; the engine's start would only clutter it.
        level = "WARNING"
    configure_logging(level, settings.log_format, texts=settings.log_texts)
    try:
        targets = settings.outbound_policy_for(is_local=is_local() or has_local_platform())
        validation = build_validation(settings)
        results = build_result_uploader(settings, targets=targets)
    except SettingError as error:
        engine.abandon()
        exit_on_setting_error(error)
    interval_s = settings.stream_interval_ms / 1000
    jobs = build_services(settings, engine, validation, interval_s, results=results).jobs

    if is_local():
        return run_local(jobs, engine, settings.stream_mode)

    if find_spec("runpod") is None:
        engine.abandon()
        exit_on_setting_error(SettingError(NO_SDK))

    from handler.worker.sdk_cpuinfo_patch import patch_cpuinfo

    os.environ.setdefault("RUNPOD_LOG_LEVEL", _sdk_level(settings))
    patch_cpuinfo()

    from handler.worker import runpod_worker

    runpod_worker.serve(jobs, engine, settings.stream_mode)
    return 0


def _sdk_level(settings: WorkerSettings) -> str:
    """Return the SDK's log level: its DEBUG, which is its default, prints prompts and answers."""
    if settings.log_level == "DEBUG":
        return "DEBUG" if settings.log_texts else "INFO"
    return "WARN" if settings.log_level == "WARNING" else settings.log_level


if __name__ == "__main__":
    sys.exit(main())
