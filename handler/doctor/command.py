"""Examine the engine in a separate process and print a report: `python -m handler doctor`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from engine import BackendConfig, EngineConfig, Timeouts
from handler.doctor.comparison import compare_with_gguf
from handler.doctor.examination import examine
from handler.doctor.report import format_report
from handler.doctor.trials import run_trials


def main(configs: Sequence[EngineConfig], gguf: Path | None = None) -> int:
    """Print a report of each copy of each model, examined one after the other.

    With `gguf`, each is compared with that model on the CPUs. Returns 0 if all steps succeeded and
    1 otherwise.
    """
    succeeded = True
    for config in configs:
        for backend in (config.backend, *config.copies):
            succeeded &= _examine_one(backend, config.timeouts, gguf)
    return 0 if succeeded else 1


def _examine_one(backend: BackendConfig, timeouts: Timeouts, gguf: Path | None) -> bool:
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
        # First, because the engine reads their outcome.
        trials = run_trials(backend, timeouts, show)
        examination = examine(backend, timeouts, show)
        if gguf is not None:
            trials += compare_with_gguf(examination.findings, backend, gguf, timeouts, show)
    examination.trials = trials
    # After the progress display has ended: it redirects stdout to stderr.
    sys.stdout.write(format_report(backend, examination))
    return examination.succeeded
