"""The metrics read at each scrape: the state of the engine, the queue, the disk, the workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from emulator.batches.models import BatchStatus, StoredBatch
from emulator.metrics.definitions import PREFIX
from emulator.metrics.instruments import MetricSpec, PolledMetric
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.settings.emulator_settings import EmulatorSettings
from engine import AnyEngine, EngineState, engines_by_model
from engine.backends.rkllm.board.npu_state import NpuState, read_npu
from jobs import JobStatus, MemoryJobStore, SqliteJournal

_NPU_CORES = ("0", "1", "2")
_WORKERS = ("idle", "initializing", "running")


def build_engine_metrics(
    settings: EmulatorSettings, engine: AnyEngine, batches: Callable[[], Sequence[StoredBatch]]
) -> list[PolledMetric]:
    """Return the polled metrics of a server's own engine and of its batches."""
    models = engines_by_model(engine, settings.served_model)
    return [
        _info(settings),
        _labelled_gauge(
            "engine_state",
            "1 for the engine's current state, 0 for the others.",
            "state",
            EngineState,
            lambda: {engine.state.value: 1},
        ),
        _labelled_gauge(
            "model_copies",
            "Copies of all served models by state.",
            "state",
            EngineState,
            lambda: Counter(
                copy.state.value for each in models.values() for copy in each.instances
            ),
        ),
        _gauge("engine_slots", "Generations that can run at the same time.", lambda: engine.slots),
        _gauge("slots_in_use", "Slots in use.", lambda: engine.running),
        _gauge("requests_waiting", "Requests that are waiting for a slot.", lambda: engine.waiting),
        PolledMetric(
            MetricSpec(
                name=f"{PREFIX}engine_restarts_total",
                kind="counter",
                help="Restarts of the engine process after a crash.",
            ),
            lambda: engine.restarts,
        ),
        _labelled_gauge(
            "batches",
            "Stored batches by status.",
            "status",
            BatchStatus,
            lambda: Counter(each.status.value for each in batches()),
        ),
    ]


def build_npu_metrics(read: Callable[[], NpuState] = read_npu) -> list[PolledMetric]:
    """Return the polled metrics of a board's NPU; a number that is not known has no sample."""

    def load() -> Mapping[tuple[str, ...], float]:
        return {(str(core),): ratio for core, ratio in enumerate(read().load)}

    return [
        PolledMetric(
            MetricSpec(
                name=f"{PREFIX}npu_load_ratio",
                kind="gauge",
                help="Load of each core of the NPU, 0 to 1; only root can read it.",
                labels={"core": _NPU_CORES},
            ),
            load,
        ),
        _optional_gauge("npu_clock_hertz", "Clock of the NPU.", lambda: read().clock_hz),
        _optional_gauge(
            "npu_temperature_celsius",
            "Temperature of the NPU.",
            lambda: read().temperature_celsius,
        ),
    ]


def build_job_metrics(
    settings: EmulatorSettings,
    endpoints: Sequence[str],
    store: MemoryJobStore,
    worker_registry: WorkerRegistry,
    journal: SqliteJournal | None,
) -> list[PolledMetric]:
    """Return the polled metrics of jobs and workers, each read in constant time for any number.

    `endpoints` are those whose workers this server starts.
    """

    def oldest_s() -> float:
        times = (store.oldest_queued_at(endpoint) for endpoint in endpoints)
        # The system clock may have been set back since.
        waits = (time.time() - queued_at for queued_at in times if queued_at is not None)
        return max([0.0, *waits])

    def count_workers() -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        for endpoint in endpoints:
            counts.update(worker_registry.count_workers(endpoint))
        return counts

    return [
        _labelled_gauge(
            "jobs",
            "Stored jobs of all endpoints by status.",
            "status",
            JobStatus,
            store.count_by_status,
        ),
        _gauge("jobs_max", "Maximum number of stored jobs (MAX_JOBS).", lambda: settings.max_jobs),
        _gauge(
            "oldest_job_wait_seconds",
            "Waiting time of the oldest queued job of the server's own endpoints; 0 if none waits.",
            oldest_s,
        ),
        _gauge(
            "job_database_up",
            "1 if jobs can be written to disk, or if they are kept in memory only; else 0.",
            lambda: float(journal is None or journal.write_error is None),
        ),
        _labelled_gauge(
            "workers",
            "Workers of the server's own endpoints by state; each slot of the local worker counts.",
            "state",
            _WORKERS,
            count_workers,
        ),
    ]


def _info(settings: EmulatorSettings) -> PolledMetric:
    labels = {
        "backend": settings.backend,
        "model": settings.served_model,
        "isolation": settings.engine_isolation,
    }
    spec = MetricSpec(
        name=f"{PREFIX}info",
        kind="gauge",
        help="Always 1; the labels name the backend, the model and the isolation mode.",
        labels={name: (value,) for name, value in labels.items()},
    )
    return PolledMetric(spec, lambda: {tuple(labels.values()): 1})


def _gauge(name: str, description: str, read: Callable[[], float]) -> PolledMetric:
    return PolledMetric(MetricSpec(name=PREFIX + name, kind="gauge", help=description), read)


def _optional_gauge(name: str, description: str, read: Callable[[], float | None]) -> PolledMetric:
    def read_known() -> Mapping[tuple[str, ...], float]:
        number = read()
        return {} if number is None else {(): number}

    spec = MetricSpec(name=PREFIX + name, kind="gauge", help=description)
    return PolledMetric(spec, read_known)


def _labelled_gauge(
    name: str,
    description: str,
    label: str,
    values: Iterable[str],
    read: Callable[[], Mapping[Any, float]],
) -> PolledMetric:
    """Return a polled gauge with one label; label values without a number are reported as 0."""
    label_values = tuple(map(str, values))
    spec = MetricSpec(
        name=PREFIX + name, kind="gauge", help=description, labels={label: label_values}
    )

    def read_all() -> Mapping[tuple[str, ...], float]:
        numbers = read()
        return {(value,): numbers.get(value, 0) for value in label_values}

    return PolledMetric(spec, read_all)
