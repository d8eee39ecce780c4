"""Examine the engine in a separate process and print a report: `python -m handler doctor`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from common.temporary_folders import ScratchFolder
from engine import BackendConfig, EngineConfig, Timeouts
from handler.doctor.bundle import Bundle
from handler.doctor.comparison import compare_with_gguf
from handler.doctor.examination import examine
from handler.doctor.report import INTERRUPTED, Examination, format_report
from handler.doctor.trials import run_trials

# Where a report is useful.
WHERE_TO_SEND = 'post it with the form "A report from a board" (docs/rkllm.md#post-a-report)'


def main(
    configs: Sequence[EngineConfig], gguf: Path | None = None, bundle_path: Path | None = None
) -> int:
    """Print a report of each copy of each model, examined one after the other.

    With `gguf`, each is compared with that model on the CPUs. With `bundle_path` a file there gets
    the reports and all that explains them. Returns 0 if all steps succeeded and 1 otherwise.
    """
    if bundle_path is None:
        return 0 if _examine_all(configs, gguf, None) else 1
    with ScratchFolder() as scratch:
        bundle = Bundle(scratch.path)
        succeeded = _examine_all(configs, gguf, bundle)
        try:
            bundle.write(bundle_path)
        except OSError as error:
            sys.stderr.write(f"--bundle: {bundle_path} was not written: {error.strerror}\n")
            return 1
    sys.stderr.write(f"{bundle_path} has the report and the recordings: {WHERE_TO_SEND}\n")
    return 0 if succeeded else 1


def _examine_all(configs: Sequence[EngineConfig], gguf: Path | None, bundle: Bundle | None) -> bool:
    succeeded = True
    for config in configs:
        for backend in (config.backend, *config.copies):
            examination = _examine_one(backend, config.timeouts, gguf, bundle)
            if examination.was_interrupted:
                return False
            succeeded &= examination.succeeded
    return succeeded


def _examine_one(
    backend: BackendConfig, timeouts: Timeouts, gguf: Path | None, bundle: Bundle | None
) -> Examination:
    """Print the report of one copy, and return what it is about."""
    if bundle is not None:
        backend = bundle.record(backend)
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = progress.add_task("starting", total=None)

    def show(step: str) -> None:
        progress.reset(task, description=step)

    with progress:
        try:
            # First, because the engine reads their outcome.
            trials = run_trials(backend, timeouts, show, bundle)
            examination = examine(backend, timeouts, show, bundle=bundle)
        except KeyboardInterrupt:
            trials, examination = [], Examination(ended=INTERRUPTED)
        if gguf is not None and not examination.was_interrupted:
            trials += compare_with_gguf(examination.findings, backend, gguf, timeouts, show)
    examination.trials = trials
    # After the progress display has ended: it redirects stdout to stderr.
    report = format_report(backend, examination)
    sys.stdout.write(report)
    if bundle is not None:
        bundle.add(report, examination)
    return examination
