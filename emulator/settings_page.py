"""`python -m emulator.settings_page`: docs/settings.md, made from the classes themselves."""

from __future__ import annotations

import sys
from typing import get_args

from batch.settings import BatchSettings
from emulator.settings import EmulatorSettings
from handler.rkllm_settings import RkllmSettings
from handler.settings import Settings
from handler.worker_settings import ResultSettings, WorkerSettings

_INTRODUCTION = (
    "Environment variables, read once at the start. An empty one counts as unset; a bad one ends "
    "the process with a line that names it. This page is made by `make docs`."
)


def page() -> str:
    """Return the whole page: what all entry points share, then what each has of its own."""
    parts = [
        "# Settings",
        _INTRODUCTION,
        "## Every entry point",
        _table(Settings, frozenset(RkllmSettings.model_fields)),
        "## RKLLM, of every entry point",
        _table(RkllmSettings, frozenset()),
        "## A bucket for results, of the RunPod worker and of the local server",
        _table(ResultSettings, frozenset(Settings.model_fields)),
        "## `python -m handler`, the RunPod worker",
        _table(WorkerSettings, frozenset(ResultSettings.model_fields)),
        "## `python -m emulator`, the local server",
        _table(EmulatorSettings, frozenset(ResultSettings.model_fields)),
        "## `python -m batch`, batches",
        _table(BatchSettings, frozenset(Settings.model_fields)),
    ]
    return "\n\n".join(parts) + "\n"


def _table(cls: type[RkllmSettings], told: frozenset[str]) -> str:
    rows = ["| variable | default | means |", "|---|---|---|"]
    for name, field in cls.model_fields.items():
        if name in told:
            continue
        default = "unset" if field.default in (None, "", ()) else f"`{_written(field.default)}`"
        choices = [value for value in get_args(field.annotation) if isinstance(value, str)]
        allowed = f" One of {', '.join(f'`{each}`' for each in choices)}." if choices else ""
        rows.append(f"| `{name.upper()}` | {default} | {field.description}{allowed} |")
    return "\n".join(rows)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.stdout.write(page())
