"""What is looked up when somebody asks: the engine, the queue, the disk, the workers now."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from emulator.batches.stored_batch import BatchStatus, StoredBatch
from emulator.fleet import Fleet
from emulator.metrics.catalogue import PREFIX
from emulator.metrics.instruments import Reading, Spec
from emulator.settings import EmulatorSettings
from engine import AnyEngine, EngineState, by_model
from jobs import JobStatus, MemoryJobStore, SqliteJournal

_WORKERS = ("idle", "initializing", "running")


def readings(
    settings: EmulatorSettings,
    engine: AnyEngine,
    store: MemoryJobStore,
    fleet: Fleet,
    journal: SqliteJournal | None,
    batches: Callable[[], Sequence[StoredBatch]],
) -> list[Reading]:
    """Return all of them; none takes longer for more jobs."""
    endpoint = settings.endpoint_id
    models = by_model(engine, settings.served_model)

    def oldest_s() -> float:
        queued_at = store.oldest_queued_at(endpoint)
        # The clock may have been set back since.
        return 0.0 if queued_at is None else max(0.0, time.time() - queued_at)

    return [
        _info(settings),
        _by(
            "engine_state",
            "1 for the state that the engine is in.",
            "state",
            EngineState,
            lambda: {engine.state.value: 1},
        ),
        _by(
            "model_copies",
            "Models that are served, each with all its copies, by the state they are in.",
            "state",
            EngineState,
            lambda: Counter(
                copy.state.value for each in models.values() for copy in each.instances
            ),
        ),
        _one("engine_slots", "Runs that the engine does side by side.", lambda: engine.slots),
        _one("slots_in_use", "Slots that are held by runs.", lambda: engine.running),
        _one("requests_waiting", "Requests that wait for a slot.", lambda: engine.waiting),
        Reading(
            Spec(
                name=f"{PREFIX}engine_restarts_total",
                kind="counter",
                help="How often the engine's process was started again after a crash.",
            ),
            lambda: engine.restarts,
        ),
        _by("jobs", "Jobs that are kept, of all endpoints.", "status", JobStatus, store.totals),
        _one("jobs_max", "As many jobs may be kept (MAX_JOBS).", lambda: settings.max_jobs),
        _one(
            "oldest_job_wait_seconds",
            "How long that job of the server's own endpoint waits that has waited longest.",
            oldest_s,
        ),
        _one(
            "job_database_up",
            "1 while the disk takes jobs; also where jobs are kept in memory.",
            lambda: float(journal is None or journal.trouble is None),
        ),
        _by(
            "workers",
            "Workers of the server's own endpoint; each slot of the one inside it counts as one.",
            "state",
            _WORKERS,
            lambda: fleet.counts(endpoint),
        ),
        _by(
            "batches",
            "Batches that are kept.",
            "status",
            BatchStatus,
            lambda: Counter(each.status.value for each in batches()),
        ),
    ]


def _info(settings: EmulatorSettings) -> Reading:
    labels = {
        "backend": settings.backend,
        "model": settings.served_model,
        "isolation": settings.engine_isolation,
    }
    spec = Spec(
        name=f"{PREFIX}info",
        kind="gauge",
        help="Always 1; what the server runs on is in its labels.",
        labels={name: (value,) for name, value in labels.items()},
    )
    return Reading(spec, lambda: {tuple(labels.values()): 1})


def _one(name: str, said: str, look: Callable[[], float]) -> Reading:
    return Reading(Spec(name=PREFIX + name, kind="gauge", help=said), look)


def _by(
    name: str,
    said: str,
    label: str,
    values: Iterable[str],
    look: Callable[[], Mapping[Any, float]],
) -> Reading:
    """Return a reading with one label, 0 for each of its values that is not found."""
    known = tuple(map(str, values))
    spec = Spec(name=PREFIX + name, kind="gauge", help=said, labels={label: known})

    def found() -> Mapping[tuple[str, ...], float]:
        there = look()
        return {(value,): there.get(value, 0) for value in known}

    return Reading(spec, found)
