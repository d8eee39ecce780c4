"""`python -m tools.docs.metrics`: docs/metrics.md, with the table generated from the metrics."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from emulator.metrics.definitions import Metrics
from emulator.metrics.gauges import build_engine_metrics, build_job_metrics, build_npu_metrics
from emulator.metrics.instruments import Metric, MetricSpec
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.settings.emulator_settings import EmulatorSettings
from engine import Engine
from handler.settings.engine_configs import build_engine_config
from jobs import MemoryJobStore
from validation.rules_validator import RulesValidator

TEXT = Path(__file__).with_suffix(".md")
# Above this, the page shows the number of values instead of the values.
_MAX_LISTED_VALUES = 12


def page() -> str:
    """Return the whole page."""
    return TEXT.read_text().replace("{metrics}", _table())


@cache
def specs() -> tuple[MetricSpec, ...]:
    """Return the specification of every metric of a server, except those of its process."""
    # Independent of the environment variables of this machine.
    settings = EmulatorSettings.model_construct(engine="scripted", engine_isolation="thread")
    store = MemoryJobStore()
    worker_registry = WorkerRegistry(store, lease_s=1, grace_s=1)
    validator = RulesValidator.from_file()
    metrics: list[Metric] = [
        *Metrics(validator.issue_rules, validator.notice_rules).families,
        *build_engine_metrics(settings, Engine(build_engine_config(settings)), list),
        *build_npu_metrics(),
        *build_job_metrics(settings, [settings.endpoint_id], store, worker_registry, None),
    ]
    return tuple(metric.spec for metric in metrics)


def _table() -> str:
    rows = ["| metric | type | labels | description |", "|---|---|---|---|"]
    for spec in specs():
        labels = "; ".join(_label(spec, name) for name in spec.labels)
        rows.append(f"| `{spec.name}` | {spec.kind} | {labels} | {spec.help} |")
    return "\n".join(rows)


def _label(spec: MetricSpec, name: str) -> str:
    values = spec.labels[name]
    if len(values) == 1:
        return f"`{name}`"
    if len(values) > _MAX_LISTED_VALUES:
        return f"`{name}`: one of {len(values)}"
    return f"`{name}`: {', '.join(f'`{value}`' for value in values)}"


if __name__ == "__main__":
    sys.stdout.write(page())
